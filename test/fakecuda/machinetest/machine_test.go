// SPDX-License-Identifier: Apache-2.0

// Package machinetest tests the simulated driver's machine: all processes share its cards, and an exit frees everything at once.
package machinetest

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	mib = 1 << 20
	gib = 1 << 30

	outOfMemory = 2
)

var program, objects string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "machinetest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	program, objects = filepath.Join(dir, "process"), filepath.Join(dir, "objects")
	for _, name := range []string{program, objects} {
		source := filepath.Join("testdata", filepath.Base(name)+".c")
		if out, err := exec.Command("cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-o", name, source, "-ldl").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "cc %s: %v\n%s", source, err, out)
			os.Exit(2)
		}
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

type machine struct {
	t   *testing.T
	env []string
}

func newMachine(t *testing.T, env ...string) *machine {
	t.Helper()
	libraries := must.Get(filepath.Abs("../../../bin/fakecuda"))(t)
	if _, err := os.Stat(filepath.Join(libraries, "libcuda.so.1")); err != nil {
		t.Skipf("requires the simulated driver (make test-programs): %v", err)
	}
	m := &machine{t: t, env: []string{
		"PATH=" + os.Getenv("PATH"),
		"LD_LIBRARY_PATH=" + libraries,
		"FAKECUDA_STATE=" + filepath.Join(t.TempDir(), "state"),
		"FAKECUDA_MEMORY=8G",
		"FAKECUDA_CONTEXT=64M",
	}}
	m.env = append(m.env, env...)
	return m
}

type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
}

// start runs the program, with the given command words before it.
func (m *machine) start(before ...string) *process {
	m.t.Helper()
	words := append(before, program)
	p := &process{t: m.t, cmd: exec.Command(words[0], words[1:]...)}
	p.cmd.Env = m.env
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in := must.Get(p.cmd.StdinPipe())(m.t)
	out := must.Get(p.cmd.StdoutPipe())(m.t)
	p.in, p.answers = in, bufio.NewReader(out)
	must.Do(m.t, p.cmd.Start())
	m.t.Cleanup(p.kill)
	return p
}

func (m *machine) startOnCard(before ...string) *process {
	m.t.Helper()
	p := m.start(before...)
	p.want("init", "0")
	p.want("use 0", "0")
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *process) send(command string) {
	p.t.Helper()
	must.Do(p.t, must.Err(fmt.Fprintln(p.in, command)), command)
}

func (p *process) answer() string {
	p.t.Helper()
	answer := must.Get(p.answers.ReadString('\n'))(p.t, "no answer")
	return strings.TrimSpace(answer)
}

func (p *process) tell(command string) string {
	p.t.Helper()
	p.send(command)
	return p.answer()
}

func (p *process) want(command, answer string) {
	p.t.Helper()
	expect.Equal(p.t, p.tell(command), answer, command)
}

func (p *process) free() uint64 {
	p.t.Helper()
	var available, total uint64
	answer := p.tell("info")
	must.Do(p.t, must.Err(fmt.Sscan(answer, &available, &total)), "info", answer)
	return available
}

// processes returns NVML's list, as pid and bytes.
func (p *process) processes(index int) map[int]uint64 {
	p.t.Helper()
	list := map[int]uint64{}
	for _, word := range strings.Fields(p.tell(fmt.Sprintf("processes %d", index))) {
		pid, bytes, _ := strings.Cut(word, ":")
		number, err := strconv.Atoi(pid)
		must.Do(p.t, err, "processes", word)
		if list[number], err = strconv.ParseUint(bytes, 10, 64); err != nil {
			p.t.Fatalf("processes: %q: %v", word, err)
		}
	}
	return list
}

func TestMemoryIsHeldWithoutAHandle(t *testing.T) {
	cmd := exec.Command(objects)
	cmd.Env = newMachine(t, "FAKECUDA_DEVICES=2").env
	expect.Equal(t, string(must.Output(cmd.CombinedOutput())(t)), "", "it says")
}

func TestCapacityIsSharedByAllProcesses(t *testing.T) {
	m := newMachine(t)
	a, b := m.startOnCard(), m.startOnCard()
	a.want("alloc "+strconv.Itoa(5*gib), "0")
	b.want("alloc "+strconv.Itoa(3*gib), strconv.Itoa(outOfMemory))
	b.want("create "+strconv.Itoa(3*gib), strconv.Itoa(outOfMemory))
	b.want("async "+strconv.Itoa(3*gib), strconv.Itoa(outOfMemory))
	b.want("alloc "+strconv.Itoa(3*gib-128*mib), "0")
	expect.Equal(t, a.free(), 0, "free")
	a.want("free", "0")
	b.want("alloc "+strconv.Itoa(5*gib), "0")
}

func TestMemoryIsFreeAfterAnExec(t *testing.T) {
	m := newMachine(t)
	a, b := m.startOnCard(), m.startOnCard()
	a.want("alloc "+strconv.Itoa(5*gib), "0")
	// The answer comes from the new program, which lives on.
	a.want("exec", "another program")
	b.want("alloc "+strconv.Itoa(8*gib-64*mib), "0")
	must.Len(t, b.processes(0), 1, "NVML lists")
}

func TestNVMLInTheSameProcessDoesNotDisturbIt(t *testing.T) {
	m := newMachine(t)
	a, b := m.startOnCard(), m.start()
	a.want("alloc "+strconv.Itoa(1*gib), "0")
	expect.Equal(t, a.processes(0)[a.cmd.Process.Pid], 1*gib+64*mib, "what the process sees of its own")
	a.want("shutdown", "0")
	expect.Equal(t, b.processes(0)[a.cmd.Process.Pid], 1*gib+64*mib, "after NVML's shutdown another sees")
}

// A namespace of the loader has a driver of its own, which does not know of the first one.
func TestTwoDriversOfAProcessAreListedAsOne(t *testing.T) {
	m := newMachine(t)
	a, b := m.startOnCard(), m.startOnCard()
	a.want("alloc "+strconv.Itoa(1*gib), "0")
	a.want("second "+strconv.Itoa(2*gib), "0")
	for _, asker := range []*process{a, b} {
		expect.Equal(t, asker.processes(0)[a.cmd.Process.Pid], 3*gib+2*64*mib, "what NVML lists of both")
	}
	a.kill()
	expect.Equal(t, b.free(), 8*gib-64*mib, "free after its death")
}

func TestNVMLCanBeMissingItsDriver(t *testing.T) {
	m := newMachine(t, "FAKECUDA_NVML=fail")
	p := m.startOnCard()
	p.want("nvml", "9")
	p.want("alloc "+strconv.Itoa(1*gib), "0")
}

// Exits at any instruction: nothing is lost, nothing leaks, and the card is never overcommitted.
func TestKillStormLeavesNothing(t *testing.T) {
	m := newMachine(t)
	witness := m.startOnCard()
	empty := witness.free()
	var storm [4]*process
	for end, round := time.Now().Add(2*time.Second), 0; time.Now().Before(end); round++ {
		next := &storm[round%len(storm)]
		if *next != nil {
			(*next).kill()
		}
		*next = m.startOnCard()
		(*next).want("churn "+strconv.Itoa(450*mib), "0")
		time.Sleep(time.Duration(rand.IntN(5_000)) * time.Microsecond)
		var sum uint64
		for _, bytes := range witness.processes(0) {
			sum += bytes
		}
		// The figures are of different times, so their sum may be off by changes in between.
		expect.True(t, sum <= 8*gib+uint64(len(storm))*450*mib, "the card has 8 GiB, its processes hold", sum)
	}
	for _, p := range storm {
		p.kill()
	}
	expect.Equal(t, witness.free(), empty, "free after the storm")
	witness.want("alloc "+strconv.Itoa(8*gib-64*mib), "0")
}

func TestAStoppedProcessStopsNoOther(t *testing.T) {
	m := newMachine(t)
	stop := func(p *process) {
		stat := fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)
		must.Do(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		m.startOnCard().kill()
		await.That(t, "it stands still again", func() bool { return strings.Contains(string(must.Get(os.ReadFile(stat))(t)), ") T ") })
		must.Do(t, p.cmd.Process.Signal(syscall.SIGCONT))
	}
	works := m.startOnCard()
	works.want("churn "+strconv.Itoa(2*mib), "0")
	for range 100 {
		stop(works)
		time.Sleep(time.Duration(rand.IntN(1_000)) * time.Microsecond)
	}
	for i := range 100 {
		begins := m.start()
		begins.send("init")
		time.Sleep(time.Duration(i) * 50 * time.Microsecond)
		stop(begins)
		expect.Equal(t, begins.answer(), "0", "init")
		begins.kill()
	}
}
