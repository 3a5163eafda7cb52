//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/test/doccommands"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type documented interface {
	// typed returns the command line for a documented command and the container's name, or nil if the command is for another
	// engine.
	typed(words []string, name string) []string
}

func hasDocuments(e engine) string {
	if d, ok := e.(*docker); ok && !d.old && !d.shim {
		return "`gpuslice install docker` gives a Docker of this age our shim"
	}
	if _, ok := e.(documented); ok {
		return ""
	}
	return "the documents have no commands of it"
}

// documentsAreTrue runs the documents' command blocks that name this engine. It substitutes images and their commands, requests
// no GPUs (other cases do) and skips changes to the machine's configuration, which the site already has.
func documentsAreTrue(s *site) {
	blocks := must.Get(doccommands.Read("../.."))(s.T)
	tried := 0
	for _, b := range blocks {
		var commands []doccommands.Command
		for _, c := range b.Commands {
			if !strings.HasPrefix(c.Text, "gpuslice install ") && !strings.HasPrefix(c.Text, "systemctl ") {
				commands = append(commands, c)
			}
		}
		if b.Mark == "engines" && s.isFor(commands) {
			s.typeAll(b, commands)
			tried++
		}
	}
	expect.True(s.t, tried != 0, "no command was tried")
}

func (s *site) isFor(commands []doccommands.Command) bool {
	return slices.ContainsFunc(commands, func(c doccommands.Command) bool {
		return s.engine.(documented).typed(strings.Fields(c.Text), "") != nil
	})
}

func (s *site) typeAll(b doccommands.Block, commands []doccommands.Command) {
	s.t.Helper()
	var session doccommands.Session
	for _, c := range commands {
		words := session.Words(c)
		if words[0] == "gpuslice" {
			ours := []string{"env", "GPUSLICE_SOCKET=" + s.Socket(), "gpuslice"}
			if words[1] == "pool" && words[2] == "create" {
				defer s.must(ours[0], append(ours[1:len(ours):len(ours)], "pool", "delete", words[3])...)
			}
			words = append(ours, words[1:]...)
		} else {
			name := "documents" + strconv.FormatUint(names.Add(1), 10)
			if i := slices.Index(words, "--name"); i >= 0 {
				name = words[i+1]
			}
			if words = s.engine.(documented).typed(words, name); words == nil {
				continue
			}
			defer s.remove(name)
		}
		out, err := s.output(words[0], words[1:]...)
		if refused := strings.Contains(strings.Join(c.Printed, ""), "gpuslice: "); (err != nil) != refused {
			s.t.Errorf("%s: %s: %v\n%s", b, c.Text, err, out)
			return
		}
		if len(c.Printed) == 0 {
			continue
		}
		expect.NoError(s.t, session.Compare(c, out), b)
	}
}

// stoodIn returns the arguments of `run` with a local image and command substituted.
func stoodIn(words []string, name string) (all []string) {
	command := "grep -q gpuslice /etc/ld.so.preload" // fails under any other runtime
	for i := 0; i < len(words); i++ {
		switch word := words[i]; word {
		case "--gpus", "--device", "--name":
			i++
		case "-d":
			command = "sleep 600"
			all = append(all, word)
		case "IMAGE", "pytorch/pytorch":
			return slices.Concat(all, []string{"--name", name, imageRef("debian")}, strings.Fields(command))
		default:
			all = append(all, word)
		}
	}
	return nil
}

func (e *dockerlike) typed(words []string, name string) []string {
	i := slices.Index(words, "run")
	byVariable := slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(word, "GPUSLICE_VRAM") })
	if words[0] != e.program[0] || i < 0 || byVariable != (e.annotate != nil) {
		return nil
	}
	program := e.program
	if e.runtime == "" { // the site already has the documented flags
		program = append(program[:1:1], words[1:i]...)
	}
	return slices.Concat(program, []string{"run"}, e.flags, stoodIn(words[i+1:], name))
}

func (e *ctr) typed(words []string, name string) []string {
	if words[0] != "ctr" || words[1] != "run" {
		return nil
	}
	flags := words[2 : len(words)-2]
	return slices.Concat([]string{"ctr"}, e.s.ctrArgs("run"), []string{"--fifo-dir", e.s.in("fifo")}, flags, []string{imageRef("debian"), name, "true"})
}
