// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// userHz is the unit of times in /proc/PID/stat: 100 on every architecture that gpuslice runs on.
const userHz = 100

// Stale returns the command that makes a running engine read its configuration, or "" if the engine has read it, is not running,
// or that is unknown. The configuration must name the runtime. ask runs a program and returns its output.
func Stale(h Host, engineName string, ask func(program string, args ...string) ([]byte, error)) (string, error) {
	e, err := find(engineName)
	if err != nil || e.restart() == "" { // Podman reads it for each command
		return "", err
	}
	if engineName == (docker{}).name() { // a reload leaves no trace except the known runtimes
		var runtimes map[string]json.RawMessage
		if said, err := ask("docker", "info", "--format", "{{json .Runtimes}}"); err == nil {
			_ = json.Unmarshal(said, &runtimes) // an invalid answer names no runtime
		}
		if _, known := runtimes[name]; known || len(runtimes) == 0 {
			return "", nil
		}
		return e.restart(), nil
	}
	began, err := h.began(e.programs()[0], e.files()[0])
	if err != nil || began.IsZero() {
		return "", err
	}
	for _, file := range e.files() { // includes directories: their times change with new drop-ins
		// The time of boot is known to the second.
		if info, err := os.Stat(filepath.Join(h.Root, file)); err == nil && info.ModTime().After(began.Add(time.Second)) {
			return e.restart(), nil
		}
	}
	return "", nil
}

// began returns the start time of a process of program that reads file, or zero if there is none. Docker's own containerd, for
// example, reads another file.
func (h Host) began(program, file string) (time.Time, error) {
	proc := filepath.Join(h.Root, "proc")
	found, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return time.Time{}, err
	}
	for _, dir := range found {
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.TrimSpace(string(comm)) != program || !reads(strings.Split(string(line), "\x00"), file) {
			continue
		}
		if stat, err := os.ReadFile(filepath.Join(dir, "stat")); err == nil { // else it has ended
			return startOf(proc, string(stat))
		}
	}
	return time.Time{}, nil
}

// reads reports whether an engine with these arguments reads file.
func reads(words []string, file string) bool {
	for i, word := range words {
		flag, value, joined := strings.Cut(word, "=")
		if flag != "--config" && flag != "-c" {
			continue
		}
		if !joined && i+1 < len(words) {
			value = words[i+1]
		}
		return value == file
	}
	return true
}

// startOf parses field 22 of /proc/PID/stat, which counts from boot. Field 2 may contain any characters.
func startOf(proc, stat string) (time.Time, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return time.Time{}, fmt.Errorf("%s: a process's stat has %d fields behind its name, where 20 are needed", proc, len(fields))
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	whole, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(whole)) {
		if word, ok := strings.CutPrefix(line, "btime "); ok {
			boot, err := strconv.ParseInt(strings.TrimSpace(word), 10, 64)
			return time.Unix(boot, 0).Add(time.Duration(ticks) * time.Second / userHz), err
		}
	}
	return time.Time{}, fmt.Errorf("%s/stat has no btime", proc)
}
