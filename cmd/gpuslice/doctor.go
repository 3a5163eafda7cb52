// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/doctor"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/place"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check whether this host is ready, and say what to do if not",
		Description: `It only looks. The exit code is 1 if anything fails. A check that only root can make is
skipped for other users, and says so; sudo gpuslice doctor makes them all.

   gpuslice doctor
   gpuslice doctor --config ./config.toml
   gpuslice doctor --json |
      jq '.[] | select(.level == "warn" or .level == "fail")'`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Value: api.DefaultConfig, Usage: "the configuration `FILE` of gpusliced", TakesFile: true},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			configuration, err := filepath.Abs(c.String("config"))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context, 30*time.Second)
			defer cancel()
			finder := place.New()
			asked, forUsers := sockets(c, configuration)
			host := doctor.Host{
				Root:           "/",
				User:           os.Geteuid(),
				Env:            os.Getenv,
				Config:         configuration,
				Socket:         asked,
				Named:          c.IsSet("socket"),
				Sessions:       forUsers,
				Enforcer:       client.New(asked),
				Devices:        nvmlDevices,
				Library:        func() (string, error) { return finder.Library("") },
				Program:        finder.Program,
				RuntimeVersion: runtimeVersion,
				LookPath:       lookPath,
				Engines:        func() []doctor.Engine { return enginesHere("/") },
			}
			findings := host.Check(ctx)
			if c.Bool("json") {
				err = show.JSON(c.App.Writer, findings)
			} else {
				err = doctor.Print(c.App.Writer, findings)
			}
			if err == nil && doctor.Failed(findings) {
				return &session.Error{Code: 1, Err: fmt.Errorf("this host is not ready")}
			}
			return err
		},
	}
}

// lookPath finds a program in PATH, or in the directories that only root's PATH has.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if err == nil || errors.Is(err, exec.ErrDot) {
			break
		}
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return found, nil
		}
	}
	return path, err
}

// enginesHere returns the engines below root and the state of their configuration, found by a dry run of install.
func enginesHere(root string) []doctor.Engine {
	host, err := engines.NewHost(root, place.New().Program)
	if err != nil {
		return nil
	}
	var found []doctor.Engine
	for _, name := range engines.Names() {
		if present, _, err := engines.Present(host, name); err != nil || !present {
			continue
		}
		e := doctor.Engine{Name: name}
		registers, err := engines.Install(host, name, engines.Options{DryRun: true})
		asDefault, defaultErr := engines.Install(host, name, engines.Options{DryRun: true, Default: true})
		e.Err, e.Reload = err, registers.Restart
		e.Default = err == nil && defaultErr == nil && asDefault.State == engines.Nothing
		e.Registered = e.Default || err == nil && registers.State == engines.Nothing
		if root == "/" { // an image has no running programs
			if e.Registered {
				e.Stale, e.Err = engines.Stale(host, name, askEngine)
			}
			if u := engines.CannotAnnotate(host, name, askEngine); u != nil {
				e.Unannotated, e.Variables = u.Why, u.Do
			}
		}
		found = append(found, e)
	}
	return found
}

// askEngine runs an engine's client with a timeout, as its daemon may hang.
func askEngine(program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, program, args...).Output()
}

func runtimeVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, nil
}
