//go:build engines

// SPDX-License-Identifier: Apache-2.0

// Package engines runs the same cases with every supported engine: the real programs, each with private daemons, state
// and cgroups. Only the driver is simulated. `make test-engines` runs it; build.sh fetches and builds the engines.
//
// To add an engine, implement the interface engine and add a row in rows_test.go; to add a case, write a function and
// a row in cases_test.go. An engine lacks a case if it does not implement the case's interface or if its row says
// so. The table in docs/evidence/engines.md then has a dash, with the reason below.
package engines

// engine is one way to start containers. Its methods run its users' commands and return their output.
type engine interface {
	// up starts the engine's daemons; s stops them with the test.
	up(s *site)
	// run starts a container, which keeps running.
	run(c container) (string, error)
	// exec runs a command in a container and returns its output.
	exec(name string, args ...string) (string, error)
	// kill ends a container's init as users do (docker kill) and returns when the engine has noticed.
	kill(name string) (string, error)
	// remove removes a container in any state. A missing container is no error.
	remove(name string) (string, error)
	// id returns the id of the container's slice.
	id(name string) string
}

type pauser interface {
	pause(name string) (string, error)
	unpause(name string) (string, error)
}

type restarter interface {
	restart(name string) (string, error)
}

// container describes a container to start. The demonstration, the simulated driver and the simulated card are bound below
// /demo, /fakecuda and /fake.
type container struct {
	name        string
	image       string            // default "debian"; see images_test.go
	annotations map[string]string // nil: 4 GiB
	env         []string
	binds       []bind
	args        []string // nil: a command that sleeps
	flags       []string // of the engine's own run, for its own cases

	readOnly, privileged, hostPID, userns bool
}

type bind struct{ source, target string }

const quota = 4 * gib

const (
	mib = 1 << 20
	gib = 1 << 30
)

func vram(size string) map[string]string { return map[string]string{"gpuslice.vram": size} }

func (c container) complete(s *site) container {
	if c.image == "" {
		c.image = "debian"
	}
	if c.annotations == nil {
		c.annotations = vram("4G")
	}
	if c.args == nil {
		c.args = []string{"sleep", "600"}
	}
	c.env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH=/fakecuda", "FAKECUDA_STATE=/fake/state"}, c.env...)
	c.binds = append([]bind{
		{s.Bin + "/demo", "/demo"}, {s.Bin + "/fakecuda", "/fakecuda"}, {s.Dir + "/fake", "/fake"},
	}, c.binds...)
	return c
}

type row struct {
	name    string
	version []string // names in build.sh's VERSIONS
	make    func() engine
	lacks   map[string]string // case: why the engine lacks it
}
