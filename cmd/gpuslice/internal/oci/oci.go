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

// verbs of a runtime that the CLI does not have itself.
var verbs = map[string]bool{
	"checkpoint": true, "create": true, "delete": true, "exec": true, "features": true,
	"kill": true, "list": true, "pause": true, "restore": true, "resume": true, "spec": true,
	"start": true, "state": true, "update": true,
}

// globals are flags that runc and crun take before the verb, and whether the next word is their value.
var globals = map[string]bool{
	"root": true, "log": true, "log-format": true, "log-level": true, "criu": true, "rootless": true,
	"cgroup-manager": true, "debug": false, "systemd-cgroup": false,
}

// runFlags, psFlags and eventsFlags are those of a runtime's `run`, `ps` and `events`, which the CLI has too. An engine gives
// global flags as well, so that what is unclear here (`ps ID`, `events ID`) is a person's.
var (
	runFlags = map[string]bool{
		"bundle": true, "b": true, "console-socket": true, "detach": true, "d": true, "pid-file": true,
		"keep": true, "no-pivot": true, "no-new-keyring": true, "no-subreaper": true, "preserve-fds": true,
		"pidfd-socket": true,
	}
	psFlags     = map[string]bool{"format": true, "f": true}
	eventsFlags = map[string]bool{"interval": true, "stats": true}
)

// ForRuntime says whether args (without the program's name) are a runtime's.
func ForRuntime(args []string) bool {
	for len(args) > 0 {
		name, hasValue, isFlag := flag(args[0])
		if !isFlag {
			return verbForRuntime(args[0], args[1:])
		}
		if _, ok := globals[name]; ok {
			return true
		}
		args = args[1:]
		if name == "socket" && !hasValue && len(args) > 0 { // the CLI's only global flag with a value
			args = args[1:]
		}
	}
	return false
}

func verbForRuntime(verb string, rest []string) bool {
	switch verb {
	case "run":
		// The first flag decides: ours are none of the runtime's.
		if len(rest) == 0 {
			return false
		}
		name, _, isFlag := flag(rest[0])
		return isFlag && runFlags[name]
	case "ps":
		return anyOf(psFlags, rest)
	case "events":
		return anyOf(eventsFlags, rest)
	}
	return verbs[verb]
}

func anyOf(flags map[string]bool, words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool {
		name, _, isFlag := flag(word)
		return isFlag && flags[name]
	})
}

// flag splits "--name=value", "--name" or "-n".
func flag(word string) (name string, hasValue, ok bool) {
	if !strings.HasPrefix(word, "-") || word == "-" || word == "--" {
		return "", false, false
	}
	name = strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	name, _, hasValue = strings.Cut(name, "=")
	return name, hasValue, true
}
