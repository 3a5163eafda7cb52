// SPDX-License-Identifier: Apache-2.0

// Package doctor looks at a host and says what gpuslice needs and has not. It only reads; every finding that
// is not well says what to do about it.
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

// Level of a finding.
type Level string

const (
	OK   Level = "ok"
	Skip Level = "skip" // not checked; Message says why
	Warn Level = "warn" // works, but not as an operator may expect
	Fail Level = "fail" // something that gpuslice is for does not work
)

// Finding is one line of the report.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Do      string `json:"do,omitempty"` // what to do; set if Level is Warn or Fail, or if another user can make the check
}

// Enforcer is what the doctor asks the host's enforcer.
type Enforcer interface {
	Info(ctx context.Context) (api.Info, error)
	Devices(ctx context.Context) ([]api.Device, error)
	Health(ctx context.Context) (api.Health, error)
}

// Host is what the doctor looks at.
type Host struct {
	Root     string // "/", or a tree for tests
	User     int    // who checks; 0 is root
	Env      func(name string) string
	Config   string // the configuration file of gpusliced
	Socket   string
	Sessions bool // Socket is the one for users, on which the enforcer tells of sessions alone
	Enforcer Enforcer
	// Devices reads driver truth without the enforcer.
	Devices func() ([]api.Device, error)
	Library func() (string, error)
	Program func(name string) (string, error)
	// RuntimeVersion returns the first line of `path --version`.
	RuntimeVersion func(ctx context.Context, path string) (string, error)
	LookPath       func(name string) (string, error)
	// Engines are those on this machine; nil if nobody asks.
	Engines func() []Engine
}

// Engine is how a container engine's configuration stands.
type Engine struct {
	Name       string
	Registered bool   // it knows the runtime gpuslice
	Default    bool   // and gives it to containers that name none
	Reload     string // the command that makes a change of its configuration count; "" if none is needed
	Stale      string // the same command, if it runs and has not read what registers the runtime; "" if not, or if that is not known
	Err        error  // its configuration cannot be read, or is not understood

	Unannotated string // why it passes no annotations, and what stands for them; "" if it does, or if that is not known
	Variables   string // what makes gpuslice read that; "" if it does
}

// Check makes every check, in the order in which one depends on another.
func (h Host) Check(ctx context.Context) []Finding {
	var findings []Finding
	add := func(check string, level Level, message, do string) {
		if level == Skip && do == "" && h.User != 0 {
			do = asRoot
		}
		findings = append(findings, Finding{Check: check, Level: level, Message: message, Do: do})
	}
	info, infoErr := h.Enforcer.Info(ctx)

	h.driver(add)
	h.config(add)
	h.enforcer(add, info, infoErr)
	told := infoErr == nil && !h.Sessions
	if told {
		h.health(ctx, add)
	}
	h.devices(ctx, add, info, told)
	if infoErr == nil && h.Sessions {
		add("enforce", Skip, h.Socket+" is for sessions: how the enforcer is, what of the devices is given and who enforces it, is told on the control socket alone", "")
	}
	h.cgroup(add)
	h.runtimes(ctx, add)
	h.engines(add)
	h.programs(add)
	h.library(add)
	h.preload(add)
	return findings
}

// asRoot makes every check.
const asRoot = "`sudo gpuslice doctor` makes this check"

type adder func(check string, level Level, message, do string)

// denied reports the check as skipped if err says that this user may not make it.
func (add adder) denied(check, message string, err error) bool {
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	add(check, Skip, "not checked: "+message, "")
	return true
}

// Failed says whether any finding is a failure.
func Failed(findings []Finding) bool {
	for _, f := range findings {
		if f.Level == Fail {
			return true
		}
	}
	return false
}

// Print writes the findings for a person.
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
