// SPDX-License-Identifier: Apache-2.0

// Package doctor checks whether a host meets the requirements of gpuslice. It only reads. Every finding that is not OK has
// advice.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// Level is the level of a finding.
type Level string

const (
	OK   Level = "ok"
	Skip Level = "skip" // not checked; Message has the reason
	Warn Level = "warn" // works, but perhaps not as expected
	Fail Level = "fail" // a function of gpuslice does not work
)

// Finding is one line of the report.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Do      string `json:"do,omitempty"` // advice; set if Level is Warn or Fail, or if another user can make the check
}

// Enforcer has the methods of the host's enforcer that the doctor needs.
type Enforcer interface {
	Info(ctx context.Context) (api.Info, error)
	Devices(ctx context.Context) ([]api.Device, error)
	Health(ctx context.Context) (api.Health, error)
}

// Host is the host to check.
type Host struct {
	Root     string // "/", or a tree for tests
	User     int    // uid of the caller; 0 is root
	Env      func(name string) string
	Config   string // configuration file of gpusliced
	Socket   string
	Named    bool // the caller names Socket, which may be another enforcer's than Config's
	Sessions bool // Socket is the users' socket, which shows sessions only
	Enforcer Enforcer
	// Devices reads the devices without the enforcer.
	Devices func() ([]api.Device, error)
	Library func() (string, error)
	Program func(name string) (string, error)
	// RuntimeVersion returns the first line of `path --version`.
	RuntimeVersion func(ctx context.Context, path string) (string, error)
	LookPath       func(name string) (string, error)
	// Engines returns the engines on this machine; nil skips the check.
	Engines func() []Engine
}

// Engine is the state of a container engine's configuration.
type Engine struct {
	Name       string
	Registered bool   // the runtime gpuslice is registered
	Default    bool   // and is the default runtime
	Reload     string // command that applies a change of the configuration; "" if none is needed
	Stale      string // the same command, if the engine runs with an older configuration; "" if not, or unknown
	Err        error  // its configuration cannot be read, or is not understood

	Unannotated string // why it passes no annotations, and the alternative; "" if it does, or unknown
	Variables   string // what makes gpuslice read the alternative; "" if it does already
}

// Check makes all checks, in the order of their dependencies.
func (h Host) Check(ctx context.Context) []Finding {
	var findings []Finding
	add := func(check string, level Level, message, do string) {
		if level == Skip && do == "" && h.User != 0 {
			do = asRoot
		}
		findings = append(findings, Finding{Check: check, Level: level, Message: message, Do: do})
	}
	info, infoErr := h.Enforcer.Info(ctx)
	playground := h.Named && h.simulated(ctx)

	if playground {
		add("driver", OK, "simulated: this is a playground, without a GPU and without containers; runtimes and engines are not checked", "")
	} else {
		h.driver(add)
	}
	h.config(add)
	h.enforcer(add, info, infoErr)
	told := infoErr == nil && !h.Sessions
	if told {
		h.health(ctx, add)
	}
	h.devices(ctx, add, info, told)
	if infoErr == nil && h.Sessions {
		add("enforce", Skip, h.Socket+" is the session socket: only the control socket reports the enforcer's health, what is granted of the devices, and what enforces it", "")
	}
	h.cgroup(add)
	if !playground {
		h.runtimes(ctx, add)
		h.engines(add)
	}
	h.programs(add)
	h.library(add)
	h.preload(add)
	return findings
}

const asRoot = "`sudo gpuslice doctor` makes this check"

type adder func(check string, level Level, message, do string)

// denied reports whether err is a lack of permission, and adds the check as skipped then.
func (add adder) denied(check, message string, err error) bool {
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	add(check, Skip, "not checked: "+message, "")
	return true
}

// Failed reports whether any finding is a failure.
func Failed(findings []Finding) bool {
	for _, f := range findings {
		if f.Level == Fail {
			return true
		}
	}
	return false
}

// Print writes the findings as text.
func Print(out io.Writer, findings []Finding) error {
	for _, f := range findings {
		if _, err := fmt.Fprintf(out, "%-5s %-10s %s\n", f.Level, f.Check, f.Message); err != nil {
			return err
		}
		if f.Do != "" {
			if _, err := fmt.Fprintf(out, "%16s %s\n", "->", strings.TrimSpace(f.Do)); err != nil {
				return err
			}
		}
	}
	return nil
}
