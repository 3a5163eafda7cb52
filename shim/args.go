// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/shim/spec"
)

// Args holds the parts of a low-level runtime's command line that the shim needs.
type Args struct {
	Verb   string // the first known verb, "" if absent
	Bundle string // --bundle, "" if absent
	Config string // crun's --config, which replaces the bundle's config.json
	Log    string // --log
}

// Creates reports whether the verb creates a container.
func (a Args) Creates() bool {
	return a.Verb == "create" || a.Verb == "run" || a.Verb == "restore"
}

// BundleDir returns the absolute path of the bundle of a container to create, or "" for other verbs.
func (a Args) BundleDir() (string, error) {
	if !a.Creates() {
		return "", nil
	}
	if a.Config != "" {
		return "", fmt.Errorf("--config %.256q names another file than the bundle's %s, which the hook reads: give the container a bundle of its own", a.Config, spec.FileName)
	}
	dir, err := filepath.Abs(a.Bundle)
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	return dir, nil
}

// withValue lists the flags of runc and crun that take the next word as their value, before or after the verb. An unknown flag
// counts as one without a value. Its value is then skipped, unless it equals a verb.
var withValue = strings.Fields(`
	root log log-format log-level criu rootless cgroup-manager
	bundle b config f console-socket pid-file preserve-fds pidfd-socket
	image-path work-path parent-path manage-cgroups-mode empty-ns lsm-profile lsm-mount-context status-fd page-server`)

var verbs = strings.Fields(`
	checkpoint create delete events exec features help init kill list mounts pause ps restore resume run
	spec start state update version`)

// ParseArgs parses the words after the program's name as runc and crun do.
func ParseArgs(words []string) Args {
	var a Args
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if word == "--" {
			break
		}
		if !strings.HasPrefix(word, "-") || word == "-" {
			if a.Verb == "" && slices.Contains(verbs, word) {
				a.Verb = word
				if !a.Creates() {
					break // the rest may be the command line of another program
				}
			}
			continue
		}
		name, value, ok := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if !ok {
			name, value, words = valueOf(word, name, words)
		}
		switch name {
		case "bundle", "b":
			a.Bundle = value
		case "config", "f":
			a.Config = value
		case "log":
			a.Log = value
		}
	}
	return a
}

// valueOf returns the value of a flag without "=": the next word, or the rest of word (crun's -bDIR).
func valueOf(word, name string, words []string) (string, string, []string) {
	switch {
	case slices.Contains(withValue, name):
		if len(words) > 0 {
			return name, words[0], words[1:]
		}
	case !strings.HasPrefix(word, "--") && len(name) > 1 && (name[0] == 'b' || name[0] == 'f'):
		return name[:1], name[1:], words
	}
	return name, "", words
}
