//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gpuslice/gpuslice/api"
)

// dockerlike is the command line that docker, nerdctl and podman share. An engine embeds it.
type dockerlike struct {
	s       *site
	program []string // the command and its global flags
	runtime string   // of --runtime; "" omits the flag
	flags   []string // of run, for each container
	userns  []string // of run, with a user namespace

	// annotate returns the flags for annotations; nil uses --annotation.
	annotate func(map[string]string) []string

	mu  sync.Mutex
	ids map[string]string // of containers, by name; kept after removal
}

func (e *dockerlike) invoke(args ...string) (string, error) {
	all := slices.Concat(e.program[1:], args)
	return e.s.output(e.program[0], all...)
}

func (e *dockerlike) run(c container) (string, error) {
	out, err := e.invoke(e.runArgs("run", c)...)
	if err == nil {
		e.remember(c.name, out)
	}
	return out, err
}

func (e *dockerlike) names(name string) (api.Names, bool) { return api.Names{Name: name}, true }

func (e *dockerlike) runArgs(verb string, c container) []string {
	args := []string{verb, "--name", c.name}
	if verb == "run" {
		args = append(args, "--detach")
	}
	if e.runtime != "" {
		args = append(args, "--runtime", e.runtime)
	}
	args = append(args, e.flags...)
	if e.annotate != nil {
		args = append(args, e.annotate(c.annotations)...)
	} else {
		args = append(args, annotationFlags(c.annotations)...)
	}
	for _, v := range c.env {
		args = append(args, "--env", v)
	}
	for _, b := range c.binds {
		args = append(args, "--volume", b.source+":"+b.target)
	}
	for _, c := range []struct {
		so    bool
		flags []string
	}{
		{c.readOnly, []string{"--read-only"}},
		{c.privileged, []string{"--privileged"}},
		{c.hostPID, []string{"--pid", "host"}},
		{c.userns, e.userns},
	} {
		if c.so {
			args = append(args, c.flags...)
		}
	}
	return slices.Concat(args, c.flags, []string{imageRef(c.image)}, c.args)
}

func (e *dockerlike) foreground(c container, terminal bool) []string {
	c.flags = append(c.flags, "--rm")
	if terminal {
		c.flags = append(c.flags, "--tty")
	}
	args := slices.DeleteFunc(e.runArgs("run", c), func(arg string) bool { return arg == "--detach" })
	return slices.Concat(e.program, args)
}

func annotationFlags(annotations map[string]string) (flags []string) {
	for key, value := range annotations {
		flags = append(flags, "--annotation", key+"="+value)
	}
	return flags
}

var idLine = regexp.MustCompile(`(?m)^[0-9a-f]{64}$`)

// remember stores the id that a detached run printed, possibly after warnings.
func (e *dockerlike) remember(name, out string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ids == nil {
		e.ids = map[string]string{}
	}
	e.ids[name] = idLine.FindString(out)
}

func (e *dockerlike) id(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ids[name]
}

func (e *dockerlike) exec(name string, args ...string) (string, error) {
	return e.invoke(append([]string{"exec", name}, args...)...)
}

func (e *dockerlike) kill(name string) (string, error) {
	if out, err := e.invoke("kill", name); err != nil {
		return out, err
	}
	return e.invoke("wait", name)
}

func (e *dockerlike) pause(name string) (string, error)   { return e.invoke("pause", name) }
func (e *dockerlike) unpause(name string) (string, error) { return e.invoke("unpause", name) }

func (e *dockerlike) restart(name string) (string, error) {
	return e.invoke("restart", "-t", "0", name)
}

func (e *dockerlike) remove(name string) (string, error) {
	out, err := e.invoke("rm", "--force", "--volumes", name)
	if err != nil && strings.Contains(strings.ToLower(out), "no such container") {
		err = nil
	}
	return out, err
}
