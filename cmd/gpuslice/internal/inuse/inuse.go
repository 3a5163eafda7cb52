// SPDX-License-Identifier: Apache-2.0

// Package inuse finds users of gpuslice's programs on a host: containers, sessions and leases with processes, and a running
// gpusliced. It only reads files, and needs no daemon.
package inuse

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Use is a use of the programs.
type Use struct {
	What    string // for display
	PID     int    // its first process
	Command string // of that process
	End     string // command that ends it
	Left    string // consequence for it of removing the programs
}

// Host has the directories to read.
type Host struct {
	Proc     string // mount point of proc
	RunDir   string // the enforcer's
	StateDir string
}

// Slices returns the slices with processes.
func (h Host) Slices() ([]Use, error) {
	dirs, err := filepath.Glob(filepath.Join(h.RunDir, "slices", "*"))
	if err != nil {
		return nil, err
	}
	var uses []Use
	found := make(map[string]bool)
	for _, pid := range h.pids() {
		for _, dir := range dirs {
			file := h.mentions(pid, "/slices/"+filepath.Base(dir))
			if found[dir] || file == "" {
				continue
			}
			found[dir] = true
			u := useOf(h.cgroup(pid), file == bound)
			u.PID, u.Command = pid, h.read(pid, "comm")
			switch {
			case u.End != "":
			case file == bound: // the first process of a PID namespace ignores a SIGTERM that it does not handle
				u.End = "kill -9 " + strconv.Itoa(pid)
			default:
				u.End = "kill " + strconv.Itoa(pid)
			}
			uses = append(uses, u)
		}
	}
	return uses, nil
}

// Daemon returns the process with the enforcer's lock. After systemd has stopped its own, that is another one.
func (h Host) Daemon() []Use {
	text, err := os.ReadFile(filepath.Join(h.StateDir, "lock"))
	pid, syntax := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || syntax != nil || h.read(pid, "comm") != "gpusliced" {
		return nil
	}
	return []Use{{What: "a daemon that systemd does not run", PID: pid, Command: "gpusliced", End: "kill " + strconv.Itoa(pid), Left: "keeps running"}}
}

// pids returns the pids of all processes in ascending order: a container's first process precedes its children.
func (h Host) pids() []int {
	entries, _ := os.ReadDir(h.Proc)
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// bound is the file with the bind mount of a container's slice. A session has the slice's directory in its environment.
const bound = "mountinfo"

// mentions returns the file of a process that mentions text, or "". It skips files that cannot be read.
func (h Host) mentions(pid int, text string) string {
	for _, file := range []string{bound, "environ", "maps"} {
		all, err := os.ReadFile(filepath.Join(h.Proc, strconv.Itoa(pid), file))
		if err == nil && mentioned(all, text) {
			return file
		}
	}
	return ""
}

// mentioned reports whether text occurs as a whole: "/slices/a-1" does not occur in "/slices/a-12".
func mentioned(all []byte, text string) bool {
	for {
		i := bytes.Index(all, []byte(text))
		if i < 0 {
			return false
		}
		all = all[i+len(text):]
		if len(all) == 0 || all[0] < '0' || all[0] > '9' {
			return true
		}
	}
}

func (h Host) read(pid int, file string) string {
	text, _ := os.ReadFile(filepath.Join(h.Proc, strconv.Itoa(pid), file))
	return strings.TrimSpace(string(text))
}

// cgroup returns the cgroup of a process: the path of version 2, or the first of version 1.
func (h Host) cgroup(pid int) string {
	first := ""
	for line := range strings.Lines(h.read(pid, "cgroup")) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		_, at, _ := strings.Cut(rest, ":")
		if strings.HasPrefix(line, "0::") && at != "/" {
			return at
		}
		if first == "" && at != "/" {
			first = at
		}
	}
	return first
}

const id = `([0-9a-f]{64})`

// engines are recognized by their cgroups, with the container's id.
var engines = []struct {
	name    string
	cgroups *regexp.Regexp
	end     string
}{
	{"Docker", regexp.MustCompile(`(?:/docker/|/docker-)` + id), "docker rm -f %s"},
	{"Podman", regexp.MustCompile(`/libpod-` + id), "podman rm -f %s"},
	{"Kubernetes", regexp.MustCompile(`(?:/cri-containerd-|/crio-|/kubepods[^:]*/)` + id), "crictl rm -f %s"},
	{"nerdctl", regexp.MustCompile(`/nerdctl-` + id), "nerdctl rm -f %s"},
	{"containerd", regexp.MustCompile(`^/default/` + id), "nerdctl rm -f %s"},
}

var leased = regexp.MustCompile(`/gpuslice-leases/([^/]+)`)

func useOf(at string, container bool) Use {
	if m := leased.FindStringSubmatch(at); m != nil {
		return Use{What: "lease " + m[1], End: "gpuslice lease drop " + m[1], Left: "keeps running until it expires"}
	}
	if !container {
		return Use{What: "a session of gpuslice run", Left: "keeps running within its quota; new processes in it get no GPU memory"}
	}
	u := Use{What: "a container in cgroup " + at, Left: "keeps running within its quota; the engine can no longer exec into the container or stop it"}
	for _, e := range engines {
		if m := e.cgroups.FindStringSubmatch(at); m != nil {
			short := m[1][:12]
			u.What, u.End = e.name+"'s container "+short, fmt.Sprintf(e.end, short)
			break
		}
	}
	return u
}
