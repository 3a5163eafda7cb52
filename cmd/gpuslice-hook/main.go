// SPDX-License-Identifier: Apache-2.0

// Gpuslice-hook is run by the OCI runtime for each container; see package hook. It ignores its environment, which some runtimes
// fill from the image.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/hook"
	"github.com/gpuslice/gpuslice/hook/annotations"
)

func main() {
	c := command{hook.ParseCommand(os.Args[1:])}
	if c.Stage == "--version" {
		fmt.Println("gpuslice-hook", api.Version)
		return
	}
	unix.Umask(0o022) // independent of the engine's: the container's users have to read the files
	stderr := io.Writer(os.Stderr)
	if c.Report != "" {
		stderr = report(c.Report)
	}
	os.Exit(hook.Run(c.Stage, os.Stdin, stderr, hook.DefaultDeadlines, c.load))
}

type command struct{ hook.Command }

// report is a file that is created on the first write. gpuslice-runtime reads it and prints it itself, since the low-level
// runtime would wrap or drop the text.
type report string

func (r report) Write(text []byte) (int, error) {
	f, err := os.OpenFile(string(r), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return os.Stderr.Write(text)
	}
	n, err := f.Write(text)
	return n, errors.Join(err, f.Close())
}

func (c command) load() (*hook.Hook, error) {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return nil, err
	}
	h := &hook.Hook{
		Enforcer: client.New(cfg.Enforcer.Socket),
		Policy:   annotations.PolicyOf(cfg.Runtime),
		Grant:    c.Grant,
		Records:  filepath.Join(cfg.Enforcer.RunDir, "hook"),
	}
	if c.Timing != "" {
		f, err := os.OpenFile(c.Timing, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		h.Timing = func(part string, took time.Duration) { fmt.Fprintln(f, part, took.Microseconds()) }
	}
	return h, nil
}
