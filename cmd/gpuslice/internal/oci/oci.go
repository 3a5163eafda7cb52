// SPDX-License-Identifier: Apache-2.0

// Package oci tells a command line that was meant for an OCI runtime from one that was meant for the
// CLI. nerdctl looks `--runtime NAME` up in PATH and runs it as a runtime; so
// `nerdctl run --runtime gpuslice` runs `gpuslice --root … create …`.
//
// It must never take a person's command for a runtime's: what is unclear is a person's.
package oci

import (
	"slices"
	"strings"
)

// verbs are those of a runtime.
var verbs = strings.Fields(`
	checkpoint create delete events exec features kill list pause ps restore resume run spec start state update`)

// globals are the flags that runc and crun take before the verb.
var globals = strings.Fields(`
	root log log-format log-level criu rootless cgroup-manager debug systemd-cgroup`)

// ForRuntime says whether args (without the program's name) are a runtime's: engines give one of its global flags before the verb, whatever that
// is. containerd and nerdctl ask for its features without.
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

// IsVerb says whether a runtime has that verb, which somebody may have meant who typed it.
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
