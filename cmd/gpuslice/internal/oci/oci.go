// SPDX-License-Identifier: Apache-2.0

// Package oci distinguishes a command line for an OCI runtime from one for the CLI. nerdctl searches `--runtime NAME` in PATH and
// runs it as a runtime, so `nerdctl run --runtime gpuslice` runs `gpuslice --root … create …`.
//
// The package must never take a person's command for a runtime's: an ambiguous one is a person's.
package oci

import (
	"slices"
	"strings"
)

var verbs = strings.Fields(`
	checkpoint create delete events exec features kill list pause ps restore resume run spec start state update`)

// globals are the flags that runc and crun accept before the verb.
var globals = strings.Fields(`
	root log log-format log-level criu rootless cgroup-manager debug systemd-cgroup`)

// ForRuntime reports whether args, without the program's name, are for a runtime. Engines set a global flag of the runtime before
// every verb, except that containerd and nerdctl call `features` without one.
func ForRuntime(args []string) bool {
	if len(args) == 1 && args[0] == "features" {
		return true
	}
	for len(args) > 0 {
		name, hasValue, isFlag := flag(args[0])
		if !isFlag {
			return false
		}
		if slices.Contains(globals, name) {
			return true
		}
		args = args[1:]
		if !hasValue && len(args) > 0 && slices.Contains(valued, name) {
			args = args[1:]
		}
	}
	return false
}

// valued are the CLI's global flags with a value.
var valued = []string{"socket", "session-socket", "token"}

// IsVerb reports whether a runtime has this verb, for advice to a person.
func IsVerb(word string) bool { return slices.Contains(verbs, word) }

// flag splits "--name=value", "--name" or "-n".
func flag(word string) (name string, hasValue, ok bool) {
	if !strings.HasPrefix(word, "-") || word == "-" || word == "--" {
		return "", false, false
	}
	name = strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	name, _, hasValue = strings.Cut(name, "=")
	return name, hasValue, true
}
