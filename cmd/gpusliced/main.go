// SPDX-License-Identifier: Apache-2.0

// Command gpusliced is the enforcer: the one authority on which slices exist on a host.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/daemon/metrics"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/hostmem"
)

const usage = `gpusliced keeps the quotas of VRAM of this host's containers.

Usage:
  gpusliced [flags]

Examples:
  gpusliced                                     as a service, configured by %s
  gpusliced --log-level debug                   say more
  gpusliced --metrics 127.0.0.1:9835            serve Prometheus metrics there
  gpusliced --run-dir /tmp/g --state-dir /tmp/s --socket /tmp/g/control.sock
                                                beside another one, for a test

Flags (each goes before the configuration file):
`

func main() {
	if checkpoint.IsChild(os.Args) { // of the driver's checkpoint
		os.Exit(checkpoint.Child(os.Args, os.Stdout, os.Stderr))
	}
	if hostmem.IsHolder(os.Args) {
		os.Exit(hostmem.Hold(os.Args))
	}
	// Each file gets the mode that the code names: containers' users need the shared ones.
	syscall.Umask(0o022)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var invalid *config.InvalidError
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	case errors.As(err, &invalid):
		fmt.Fprintln(os.Stderr, "gpusliced:", strings.Join(invalid.Lines(), "\ngpusliced: "))
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "gpusliced:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage") // already reported

// parse applies the flags to the file's values, and these to the defaults. done means that --version has been answered.
func parse(args []string, stdout, stderr io.Writer) (c config.Config, done bool, err error) {
	flags := flag.NewFlagSet("gpusliced", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), usage, api.DefaultConfig)
		flags.PrintDefaults()
	}
	file := flags.String("config", api.DefaultConfig, "read the configuration from this `file`")
	version := flags.Bool("version", false, "print the version")
	var given config.Enforcer
	flags.StringVar(&given.Socket, "socket", "", "serve the control API on this `path`")
	flags.StringVar(&given.RunDir, "run-dir", "", "keep the slices' directories in this `dir`")
	flags.StringVar(&given.StateDir, "state-dir", "", "keep the state in this `dir`")
	flags.StringVar(&given.MetricsAddress, "metrics", "", "serve Prometheus metrics on this `address`")
	flags.StringVar(&given.LogLevel, "log-level", "", "`level`: debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return c, false, err
		}
		return c, false, errUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "gpusliced: argument %q is not known: there are only flags (see `gpusliced --help`)\n", flags.Arg(0))
		return c, false, errUsage
	}
	if *version {
		fmt.Fprintln(stdout, "gpusliced", api.Version)
		return c, true, nil
	}
	if c, err = config.Load(*file); err != nil {
		return c, false, err
	}
	to := &c.Enforcer
	for _, f := range []struct{ to, from *string }{
		{&to.Socket, &given.Socket}, {&to.RunDir, &given.RunDir}, {&to.StateDir, &given.StateDir},
		{&to.MetricsAddress, &given.MetricsAddress}, {&to.LogLevel, &given.LogLevel},
	} {
		if *f.from != "" {
			*f.to = *f.from
		}
	}
	return c, false, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	whole, done, err := parse(args, stdout, stderr)
	if done || err != nil {
		return err
	}
	c := whole.Enforcer
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return fmt.Errorf("log level %q is not known: debug, info, warn and error are accepted", c.LogLevel)
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	if _, err := os.Stat(c.Library); err != nil {
		log.Error("the interceptor is missing: no container gets a slice until it is installed", "library", c.Library, "err", err)
	}

	options := enforcer.Options{
		RunDir: c.RunDir, StateDir: c.StateDir, Library: c.Library,
		ContextBytes: uint64(c.ContextOverhead), Log: log,
		Interval: c.TruthInterval, SettleTime: c.SettleTime, ExitGrace: c.ExitGrace, IdleInterval: c.IdleInterval,
		Enforcement: c.Enforcement,
		Checkpoint:  &checkpoint.Driver{LockFile: filepath.Join(c.RunDir, "checkpoint.lock")},
		Admission:   limits(whole),
		Elastic: enforcer.Elastic{
			Remap: whole.Elastic.Remap, Overcommit: whole.Elastic.Thousandths(), MinResident: whole.Elastic.MinResident, Quantum: whole.Elastic.Quantum,
			Patience: whole.Elastic.Patience, MaxPriority: whole.Elastic.MaxPriority, HostMemory: uint64(whole.Elastic.HostMemory),
		},
		Users: whole.Sessions.ForUsers(),
		Policy: enforcer.Policy{
			Bypass: whole.Policy.Bypass, Scope: whole.Policy.Scope, Allowance: uint64(whole.Policy.Allowance), Grace: whole.Policy.BypassGrace,
		},
		Grace: whole.Expiry.Grace, MaxTTL: time.Duration(whole.Expiry.MaxTTL),
		Caller: callerOf,
	}
	if cgroup := whole.Elastic.HostCgroup; cgroup != "" {
		keeper, err := hostmem.New(hostmem.Options{RunDir: c.RunDir, Cgroup: cgroup, Log: log})
		if err != nil {
			return err
		}
		options.HostMemory = keeper
	}
	record := openAudit(whole, log)
	if record != nil {
		defer record.Close() // last, to record what happens at the end
		options.Event = record.Event
	}
	if c.NVML == config.NVMLOff {
		options.NoTruth = "it is off in the configuration"
	} else if nvml, err := driver.Open(); err != nil {
		options.NoTruth = err.Error()
	} else {
		defer nvml.Close()
		options.Truth, options.Backend = nvml, nvml
	}
	return serve(ctx, whole, options, record, log)
}

// limits returns the enforcer's limits from the configuration.
func limits(c config.Config) admission.Limits {
	a := admission.Limits{
		Overcommit: c.Admission.Thousandths(), Reserve: uint64(c.Admission.Reserve), MaxVRAM: c.Admission.MaxVRAM.Share,
		Tenants: make(map[string]api.Share),
	}
	for name, tenant := range c.Tenants {
		a.Tenants[name] = tenant.MaxVRAM.Share
	}
	return a
}

// listen opens the control socket, for root only if the group does not exist.
func listen(socket, group string, log *slog.Logger) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	listener, err := server.Listen(socket, group)
	if group != "" && missingGroup(err) {
		log.Warn("the group does not exist, so only root can use the control socket: create it with groupadd --system", "group", group)
		return server.Listen(socket, "")
	}
	return listener, err
}

func serve(ctx context.Context, whole config.Config, options enforcer.Options, record *audit.Writer, log *slog.Logger) error {
	c := whole.Enforcer
	var scraped net.Listener // by Prometheus; before anything else is begun: the address may be another's
	if c.MetricsAddress != "" {
		var err error
		if scraped, err = net.Listen("tcp", c.MetricsAddress); err != nil {
			return fmt.Errorf("serve metrics on %q: %w", c.MetricsAddress, err)
		}
		defer scraped.Close()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	evidence := &checks{record: record}
	options.Checks = evidence.check
	e, err := enforcer.New(options)
	if err != nil {
		return err
	}
	count := metrics.New(e, log)
	count.Watch(e, log)
	e.CountWith(count)
	listener, err := listen(c.Socket, c.Group, log)
	if err != nil {
		return errors.Join(err, e.Close())
	}

	control := server.New(e, log)
	if record != nil {
		control.AuditWith(record.Put)
		count.Audit(record.Counts)
	}
	if err := evidence.checkSocket(c.Socket); err != nil {
		return errors.Join(err, listener.Close(), e.Close())
	}

	// Each ends when ctx does; the first that fails ends the others.
	tasks := []func() error{
		func() error { return e.Run(ctx) },
		func() error { return control.Serve(ctx, listener) },
	}
	users, err := serveUsers(whole.Sessions, e, record, log)
	if err != nil {
		return errors.Join(err, listener.Close(), e.Close())
	}
	if users != nil {
		tasks = append(tasks, func() error { return users(ctx) })
	}
	if scraped != nil {
		log.Info("metrics are served", "address", scraped.Addr())
		tasks = append(tasks, func() error { return count.Serve(ctx, scraped) })
	}
	failed := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() {
			failed <- task()
			stop()
		}()
	}
	log.Info("gpusliced is ready", "version", api.Version, "socket", c.Socket)
	notify(log, systemd.SdNotifyReady)
	context.AfterFunc(ctx, func() { notify(log, systemd.SdNotifyStopping) })
	go watchdog(ctx, log, func() api.Health {
		h, _ := e.Health(ctx)
		return h
	})
	var errs []error
	for range tasks {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}
