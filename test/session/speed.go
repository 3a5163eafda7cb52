// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// speeds measures both sides of a ratio in turns, so that other load affects both.
type speeds struct {
	bin, dir string
	rounds   int
	count    int // launches and messages per round
	bytes    int
	native   *native
	echo     leasepb.Session_WorkClient // answers with empty messages
	least    leasepb.Session_WorkClient // launches and answers with empty messages: the minimum of a broker
	session  *lease.Session
	module   *lease.Module
	address  string
	token    string
	begun    int // brokers started by byHand
}

// speed prints the table, and writes the points of the curve to rows unless it is empty.
func speed(bin string, quick bool, rows string) (err error) {
	s := &speeds{bin: bin, rounds: 9, count: 100_000, bytes: 1 << 30}
	if quick {
		s.rounds, s.count, s.bytes = 3, 10_000, 64<<20
	}
	if s.dir, err = os.MkdirTemp("/tmp", "session-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	if s.native, err = openNative(); err != nil {
		return err
	}
	name, err := s.native.device.Name()
	if err != nil {
		return err
	}
	version, _ := os.ReadFile("/proc/driver/nvidia/version")
	first, _, _ := strings.Cut(string(version), "\n")
	fmt.Printf("# %s; %s; median of %d rounds, in turns\n", name, first, s.rounds)
	stop, err := s.start()
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	return errors.Join(s.pipelined(), s.synchronous(), s.between(rows), s.transfers(), s.copies(), s.starts(s.byHand, "gpuslice run, broker"))
}

// start starts the echo servers and a broker, the latter in a slice, and connects to them.
func (s *speeds) start() (stop func() error, err error) {
	var stops []func() error
	stop = func() error {
		var all error
		for _, f := range slices.Backward(stops) {
			all = errors.Join(all, f())
		}
		return all
	}
	self, err := os.Executable()
	if err != nil {
		return stop, err
	}
	gpuslice := filepath.Join(s.bin, "gpuslice")
	for _, server := range []struct {
		stream  *leasepb.Session_WorkClient
		name    string
		command []string
	}{
		{&s.echo, "echo", []string{self, "echo"}},
		{&s.least, "least", []string{gpuslice, "run", "--embedded", "--vram", "1G", "--", self, "least"}},
	} {
		socket := filepath.Join(s.dir, server.name+".sock")
		end, err := child(1, server.command[0], append(server.command[1:], socket)...)
		if err != nil {
			return stop, err
		}
		stops = append(stops, end)
		connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(8<<20), grpc.WithReadBufferSize(128<<10), grpc.WithWriteBufferSize(128<<10))
		if err != nil {
			return stop, err
		}
		stops = append(stops, connection.Close)
		if *server.stream, err = leasepb.NewSessionClient(connection).Work(context.Background()); err != nil {
			return stop, err
		}
	}
	end, err := s.broker("s")
	if err != nil {
		return stop, err
	}
	stops = append(stops, end)
	if s.session, err = lease.Open(context.Background(), s.address, s.token); err != nil {
		return stop, err
	}
	stops = append(stops, s.session.Close)
	s.module, err = s.session.Load(context.Background(), []byte(program))
	return stop, err
}

// broker starts a broker in a slice, with room for the copies.
func (s *speeds) broker(name string) (stop func() error, err error) {
	directory := filepath.Join(s.dir, name)
	s.address, s.token = "unix:"+filepath.Join(directory, "session.sock"), filepath.Join(directory, "token")
	return child(2, filepath.Join(s.bin, "gpuslice"), "run", "--embedded", "--vram", fmt.Sprintf("%db", s.bytes+(2<<30)), "--",
		filepath.Join(s.bin, "gpuslice-broker"), "--directory", directory, "--vram", fmt.Sprint(s.bytes+(1<<30)), "--shared", fmt.Sprint(s.bytes))
}

// child starts a program and waits for its first lines of output.
func child(lines int, name string, args ...string) (stop func() error, err error) {
	command := exec.Command(name, args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // tied to this thread, which main does not leave
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	scanner := bufio.NewScanner(stdout)
	for range lines {
		if !scanner.Scan() {
			return nil, fmt.Errorf("%s ended: %w: %s", name, command.Wait(), stderr.String())
		}
	}
	return func() error {
		_ = stdin.Close()
		_ = command.Process.Signal(unix.SIGTERM)
		_, _ = io.Copy(io.Discard, stdout)
		_ = command.Wait() // ends by SIGTERM
		return nil
	}, nil
}

func (s *speeds) inTurns(each ...func() (time.Duration, error)) ([]time.Duration, error) {
	return mediansOf(s.rounds, each)
}

func mediansOf(rounds int, each []func() (time.Duration, error)) ([]time.Duration, error) {
	all := make([][]time.Duration, len(each))
	for round := range rounds + 1 {
		for i, f := range each {
			took, err := f()
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first round warms up
				all[i] = append(all[i], took)
			}
		}
	}
	medians := make([]time.Duration, len(each))
	for i := range all {
		slices.Sort(all[i])
		medians[i] = all[i][len(all[i])/2]
	}
	return medians, nil
}

func timed(f func() error) (time.Duration, error) {
	begin := time.Now()
	err := f()
	return time.Since(begin), err
}

func (s *speeds) launch() error {
	return s.module.Launch(context.Background(), "nothing", lease.Shape{})
}

// Messages to the least broker.
var (
	oneLaunch = &leasepb.Requests{Requests: []*leasepb.Request{{Operation: &leasepb.Request_Launch{Launch: &leasepb.Launch{Kernel: "nothing"}}}}}
	oneSync   = &leasepb.Request{Operation: &leasepb.Request_Sync{Sync: &leasepb.Sync{}}}
	both      = &leasepb.Requests{Requests: append(slices.Clone(oneLaunch.GetRequests()), oneSync)}
)

func (s *speeds) launches(count int) error {
	for range count {
		if err := s.launch(); err != nil {
			return err
		}
	}
	return s.session.Sync(context.Background())
}

func (n *native) launches(count int) error {
	for range count {
		if err := n.launch(); err != nil {
			return err
		}
	}
	return n.Sync()
}

func (s *speeds) pipelined() error {
	each := func(f func(count int) error) func() (time.Duration, error) {
		return func() (time.Duration, error) { return timed(func() error { return f(s.count) }) }
	}
	took, err := s.inTurns(
		each(s.launches),
		each(func(count int) error { return messages(s.echo, count, &leasepb.Requests{}) }),
		each(s.native.launches),
		each(func(count int) error { return messages(s.least, count, oneLaunch) }),
	)
	if err != nil {
		return err
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(s.count) }
	fmt.Printf("launch, pipelined            %8.2f µs   empty stream message %8.2f µs   ratio %5.2f (goal 1.2)\n", us(took[0]), us(took[1]), quotient(took[0], took[1]))
	fmt.Printf("  its parts: the driver's launch %.2f µs (ratio %.2f), which is %.2f of the empty message; a server that does nothing but launch for each message %.2f µs (ratio %.2f)\n",
		us(took[2]), quotient(took[0], took[2]), quotient(took[2], took[1]), us(took[3]), quotient(took[0], took[3]))
	return nil
}

func quotient(a, b time.Duration) float64 { return float64(a) / float64(b) }

func messages(stream leasepb.Session_WorkClient, count int, message *leasepb.Requests) error {
	received := make(chan error, 1)
	go func() {
		for range count {
			if _, err := stream.Recv(); err != nil {
				received <- err
				return
			}
		}
		received <- nil
	}()
	for range count {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return <-received
}

func (s *speeds) synchronous() error {
	const count, turns = 50, 20 // short turns distribute other load evenly
	each := func(f func() error) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			return timed(func() error {
				for range count {
					if err := f(); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	roundTrip := func() error { return messages(s.echo, 1, &leasepb.Requests{}) }
	took, err := mediansOf(turns*s.rounds, []func() (time.Duration, error){
		each(func() error { return s.launches(1) }),
		each(s.native.once),
		each(roundTrip),
		each(func() error { return errors.Join(s.native.once(), roundTrip()) }),
		each(func() error { return messages(s.least, 1, both) }),
		each(func() error { return s.session.Sync(context.Background()) }),
	})
	if err != nil {
		return err
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / count }
	fmt.Printf("launch + sync                %8.2f µs   native %.2f + round trip %.2f = %.2f µs   ratio %5.2f (goal 1)\n",
		us(took[0]), us(took[1]), us(took[2]), us(took[1]+took[2]), quotient(took[0], took[1]+took[2]))
	fmt.Printf("  its parts: native and a round trip, one after the other, %.2f µs (ratio %.2f); a server that does nothing but launch and sync for each message %.2f µs (ratio %.2f); a sync alone %.2f µs\n",
		us(took[3]), quotient(took[0], took[3]), us(took[4]), quotient(took[0], took[4]), us(took[5]))
	return nil
}

// point is a point of the curve, as test/bench/plot.py reads it.
type point struct {
	Call     string  `json:"call"`
	Launches int     `json:"launches"`
	Native   float64 `json:"native_ns"`
	Session  float64 `json:"slice_ns"`
}

// between measures the cost of a launch by the number of launches before a sync.
func (s *speeds) between(rows string) error {
	const maxLaunches = 4096
	var points []point
	fmt.Println("a launch, with so many before each sync: µs in a session, by the driver alone")
	for n := 1; n <= maxLaunches; n *= 4 {
		turns := max(1, maxLaunches/n/16)
		each := func(f func(int) error) func() (time.Duration, error) {
			return func() (time.Duration, error) {
				return timed(func() error {
					for range turns {
						if err := f(n); err != nil {
							return err
						}
					}
					return nil
				})
			}
		}
		took, err := mediansOf(4*s.rounds, []func() (time.Duration, error){each(s.launches), each(s.native.launches)})
		if err != nil {
			return err
		}
		ns := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(n*turns) }
		points = append(points, point{"a launch", n, ns(took[1]), ns(took[0])})
		fmt.Printf("  %5d %8.2f %8.2f\n", n, ns(took[0])/1000, ns(took[1])/1000)
	}
	if rows == "" {
		return nil
	}
	text, err := json.Marshal(points)
	if err != nil {
		return err
	}
	return os.WriteFile(rows, text, 0o644)
}

// transfers compares transfers through shared memory, the client's default, with transfers in messages.
func (s *speeds) transfers() error {
	ctx := context.Background()
	// The prefix hides from the client that the socket is local.
	streaming, err := lease.Open(ctx, "passthrough:"+s.address, s.token)
	if err != nil {
		return err
	}
	data := make([]byte, min(s.bytes, 256<<20))
	buffer, err := s.session.Alloc(ctx, uint64(len(data)))
	if err != nil {
		return err
	}
	other := buffer.Of(streaming)
	medians, err := s.inTurns(
		func() (time.Duration, error) { return timed(func() error { return buffer.Write(ctx, 0, data) }) },
		func() (time.Duration, error) { return timed(func() error { return other.Write(ctx, 0, data) }) },
		func() (time.Duration, error) { return timed(func() error { return buffer.Read(ctx, 0, data) }) },
		func() (time.Duration, error) { return timed(func() error { return other.Read(ctx, 0, data) }) },
	)
	if err != nil {
		return err
	}
	rate := func(d time.Duration) float64 { return float64(len(data)) / float64(1<<30) / d.Seconds() }
	for i, name := range []string{"Write", "Read "} {
		mine, messages := medians[2*i], medians[2*i+1]
		fmt.Printf("%s, %4d MiB              %8.2f GiB/s   in messages %.2f GiB/s   ratio %5.2f\n",
			name, len(data)>>20, rate(mine), rate(messages), rate(mine)/rate(messages))
	}
	return errors.Join(buffer.Free(ctx), streaming.Close())
}

func (s *speeds) copies() error {
	ctx := context.Background()
	shared, err := s.session.Share(ctx, s.bytes)
	if err != nil {
		return err
	}
	defer func() { _ = shared.Close() }()
	size := uint64(s.bytes)
	buffer, err := s.session.Alloc(ctx, size)
	if err != nil {
		return err
	}
	own, err := unix.Mmap(-1, 0, s.bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	if err := s.native.Pin(own); err != nil {
		return err
	}
	memory, err := s.native.Alloc(size)
	if err != nil {
		return err
	}
	medians, err := s.inTurns(
		func() (time.Duration, error) {
			return timed(func() error { return buffer.WriteShared(ctx, 0, shared, 0, size) })
		},
		func() (time.Duration, error) {
			return timed(func() error { return errors.Join(s.native.Write(memory, own), s.native.Sync()) })
		},
		func() (time.Duration, error) {
			return timed(func() error { return buffer.ReadShared(ctx, 0, shared, 0, size) })
		},
		func() (time.Duration, error) {
			return timed(func() error { return s.native.Read(own, memory) })
		},
	)
	if err != nil {
		return err
	}
	rate := func(d time.Duration) float64 { return float64(s.bytes) / float64(1<<30) / d.Seconds() }
	for i, name := range []string{"mem_write", "mem_read "} {
		mine, other := medians[2*i], medians[2*i+1]
		fmt.Printf("%s, %4d MiB, shared    %8.2f GiB/s   own pinned memory %.2f GiB/s   ratio %5.2f (goal 0.9)\n",
			name, s.bytes>>20, rate(mine), rate(other), rate(mine)/rate(other))
	}
	return errors.Join(buffer.Free(ctx), s.native.Free(memory), s.native.Unpin(own))
}

// beginning starts a session, and returns the function that ends it.
type beginning func() (session *lease.Session, stop func() error, err error)

// byHand starts a broker and a session without the host's daemons.
func (s *speeds) byHand() (*lease.Session, func() error, error) {
	s.begun++
	stop, err := s.broker(fmt.Sprintf("start%d", s.begun))
	if err != nil {
		return nil, nil, err
	}
	session, err := lease.Open(context.Background(), s.address, s.token)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return session, stop, nil
}

func acquire(socket string, quick bool) error {
	s := &speeds{rounds: 9}
	if quick {
		s.rounds = 3
	}
	ctx, service := context.Background(), lease.Service{Socket: socket}
	return s.starts(func() (*lease.Session, func() error, error) {
		l, err := service.Acquire(ctx, lease.Request{VRAM: 64 << 20})
		if err != nil {
			return nil, nil, err
		}
		drop := func() error { _, err := service.Drop(ctx, l.ID); return err }
		session, err := lease.Open(ctx, l.Address, l.TokenFile)
		if err != nil {
			return nil, nil, errors.Join(err, drop())
		}
		return session, drop, nil
	}, "acquisition")
}

// starts measures the time to the end of the first kernel.
func (s *speeds) starts(begin beginning, how string) error {
	ctx := context.Background()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	medians, err := s.inTurns(func() (time.Duration, error) {
		start := time.Now()
		session, stop, err := begin()
		if err != nil {
			return 0, err
		}
		m, err := session.Load(ctx, []byte(program))
		if err == nil {
			err = errors.Join(m.Launch(ctx, "nothing", lease.Shape{}), session.Sync(ctx))
		}
		took := time.Since(start)
		return took, errors.Join(err, session.Close(), stop())
	}, func() (time.Duration, error) {
		start := time.Now()
		stop, err := child(1, self, "plain")
		took := time.Since(start)
		if err == nil {
			err = stop()
		}
		return took, err
	})
	if err != nil {
		return err
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Printf("start to first launch        %8.1f ms   plain program %.1f ms   ratio %5.2f (goal 1.1)   (%s, connection, module, launch)\n",
		ms(medians[0]), ms(medians[1]), float64(medians[0])/float64(medians[1]), how)
	return nil
}
