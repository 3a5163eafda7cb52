//go:build engines

// SPDX-License-Identifier: Apache-2.0

// Package engines tries the same cases with every engine that people start containers with: the real programs, each
// with private daemons, state and cgroups. Only the driver is simulated. `make test-engines` runs it; build.sh
// fetches and builds the engines.
//
// An engine is a file that implements the interface engine, and a line in the table below; a case is a function and a line in
// the table in cases_test.go. What an engine cannot do at all it says by not implementing an interface, or in
// its line; there is a dash in the table of docs/evidence/engines.md then, and the reason below it.
package engines

// engine is one way to start containers. Its methods are what its users type, and return what they are shown.
type engine interface {
	// up starts the daemons it has; s ends them with the test.
	up(s *site)
	// run starts a container, which stays.
	run(c container) (string, error)
	// exec runs a command in a container and returns what it wrote.
	exec(name string, args ...string) (string, error)
	// kill ends a container's init as the engine's users do (docker kill), and returns when the engine knows.
	kill(name string) (string, error)
	// remove removes a container whatever its state is. That it is not there is no error.
	remove(name string) (string, error)
	// id is that of the container's slice.
	id(name string) string
}

// pauser can freeze a container.
type pauser interface {
	pause(name string) (string, error)
	unpause(name string) (string, error)
}

// restarter can start a container again under the same id.
type restarter interface {
	restart(name string) (string, error)
}

// container is what is to be started. Every one has the demonstration, the simulated driver and the simulated card
// bound below /demo, /fakecuda and /fake.
type container struct {
	name        string
	image       string            // "debian" if it is empty; see images_test.go
	annotations map[string]string // nil: four GiB
	env         []string
	binds       []bind
	args        []string // nil: one that sleeps
	flags       []string // of the engine's own run, in the cases that only it has

	readOnly, privileged, hostPID, userns bool
}

type bind struct{ source, target string }

// quota is that of containers whose annotations are nil.
const quota = 4 * gib

const (
	mib = 1 << 20
	gib = 1 << 30
)

// vram are the annotations of a quota.
func vram(size string) map[string]string { return map[string]string{"gpuslice.vram": size} }

// complete fills in what a container says nothing of.
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

// row is an engine's line in the table.
type row struct {
	name    string
	version []string // whose versions are told: names in build.sh's VERSIONS
	make    func() engine
	lacks   map[string]string // case: why this engine has it not
}
