// SPDX-License-Identifier: Apache-2.0

// Command gpuslice-leased is the lease service: it gives users slices of a GPU for a limited time, each with a broker that runs
// their GPU sessions.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/lease/service"
)

const usage = `gpuslice-leased gives users of this host leases: slices of a GPU for a time.

Usage:
  gpuslice-leased [flags]

Examples:
  gpuslice-leased                               as a service, configured by [leases] in %s
  gpuslice-leased --config /tmp/config.toml     beside another one, for a test

Flags:
`

func main() {
	syscall.Umask(0o022) // each file gets the mode that the code names
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "gpuslice-leased:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage") // printed already

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gpuslice-leased", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), usage, api.DefaultConfig)
		flags.PrintDefaults()
	}
	file := flags.String("config", api.DefaultConfig, "read the configuration from this `file`")
	broker := flags.String("broker", "", "the broker's `program` (gpuslice-broker beside this one)")
	version := flags.Bool("version", false, "print the version")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return errUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "gpuslice-leased: argument %q is not known: there are only flags (see `gpuslice-leased --help`)\n", flags.Arg(0))
		return errUsage
	}
	if *version {
		fmt.Fprintln(stdout, "gpuslice-leased", api.Version)
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("it must run as root, because each broker has a user id of its own")
	}
	c, err := config.Load(*file)
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Enforcer.LogLevel)); err != nil {
		return fmt.Errorf("enforcer.log_level = %q: %w", c.Enforcer.LogLevel, err)
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	if *broker == "" {
		if *broker, err = siblingProgram("gpuslice-broker"); err != nil {
			return err
		}
	}
	return serve(ctx, c, limits(*file, c), *broker, log)
}

// siblingProgram returns the path of a program in the directory of this one.
func siblingProgram(name string) (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(own), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: install it with `sudo make install`, or name it with --broker", err)
	}
	return path, nil
}

// limits returns a function that returns the limits of users' sessions in the configuration file. It reads the file again after a change, since gpusliced
// may have been started again with the new ones. If the file cannot be read, the last limits stay in force.
func limits(file string, c config.Config) func() []session.Limit {
	var mu sync.Mutex
	var read service.Stamp
	all := c.Sessions.ForUsers()
	return func() []session.Limit {
		mu.Lock()
		defer mu.Unlock()
		if now := service.StampOf(file); now != read {
			read = now
			if c, err := config.Load(file); err == nil {
				all = c.Sessions.ForUsers()
			}
		}
		return all
	}
}

func serve(ctx context.Context, c config.Config, limits func() []session.Limit, broker string, log *slog.Logger) error {
	l := c.Leases
	var scraped net.Listener // early: the address may be in use
	if l.MetricsAddress != "" {
		var err error
		if scraped, err = net.Listen("tcp", l.MetricsAddress); err != nil {
			return fmt.Errorf("serve metrics on leases.metrics_address = %q: %w", l.MetricsAddress, err)
		}
		defer scraped.Close()
	}
	var remote net.Listener
	var files *service.TLSFiles
	if l.TLSAddress != "" {
		var err error
		if remote, err = net.Listen("tcp", l.TLSAddress); err != nil {
			return fmt.Errorf("serve other machines on leases.tls_address = %q: %w", l.TLSAddress, err)
		}
		defer remote.Close()
		files = &service.TLSFiles{Certificate: l.TLSCertificate, Key: l.TLSKey, ClientCA: l.TLSClientCA}
	}
	// Before the leases are restored, so that no second gpuslice-leased can serve them. Clients wait until they are.
	if err := os.MkdirAll(filepath.Dir(l.Socket), 0o755); err != nil {
		return err
	}
	listener, err := server.ListenForUsers(l.Socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	s, err := service.New(service.Options{
		Enforcer: client.New(c.Enforcer.Socket), Dir: l.Dir, Broker: broker, Cgroup: l.Cgroup,
		Bounds:   service.Bounds{Memory: uint64(l.MemoryMax), PIDs: l.PIDsMax, CPUs: l.CPUs},
		FirstUID: l.UIDs.First, LastUID: l.UIDs.Last, MaxLeases: l.MaxLeases, MaxClients: l.MaxClients, CodeBytes: uint64(l.CodeOverhead),
		LoadTimeout: l.LoadTimeout, Limits: limits, Operator: mayWrite(c.Enforcer.Socket), Log: log, TLS: files,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Each task ends with ctx; the first that fails ends the others.
	tasks := []func() error{
		func() error { return s.Run(ctx) },
		func() error { return s.Serve(ctx, listener) },
	}
	if scraped != nil {
		tasks = append(tasks, func() error { return s.ServeMetrics(ctx, scraped) })
	}
	if remote != nil {
		tasks = append(tasks, func() error { return s.ServeRemote(ctx, remote) })
	}
	failed := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() {
			failed <- task()
			stop()
		}()
	}
	log.Info("gpuslice-leased is ready", "version", api.Version, "socket", l.Socket)
	notify(log, systemd.SdNotifyReady)
	context.AfterFunc(ctx, func() { notify(log, systemd.SdNotifyStopping) })
	var errs []error
	for range tasks {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}

// notify reports the service's state to systemd (sd_notify(3)), if run by it.
func notify(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("tell systemd the service's state", "err", err)
	}
}

// mayWrite returns a function that reports whether a user with these groups may use the enforcer's control socket. No limits
// apply there, and so none here.
func mayWrite(socket string) func([]uint32) bool {
	return func(groups []uint32) bool {
		info, err := os.Stat(socket)
		if err != nil {
			return false
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		return ok && info.Mode().Type() == fs.ModeSocket && info.Mode().Perm()&0o020 != 0 && slices.Contains(groups, st.Gid)
	}
}
