// SPDX-License-Identifier: Apache-2.0

// Command gpuslice-broker serves one lease's GPU session. The lease service starts it; started by hand it serves a session in any
// slice.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/durable"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
	"github.com/gpuslice/gpuslice/lease/broker"
)

const usage = `gpuslice-broker serves a GPU session: memory, modules and launches on one device, for clients that need no driver.

Usage:
  gpuslice-broker --directory DIR --vram SIZE [flags]

Example:
  gpuslice run --vram 1G -- gpuslice-broker --directory /tmp/session --vram 64M

DIR gets the sockets session.sock and shared.sock, and the file token. A client must send that token.

Flags:
`

func main() {
	unix.Umask(0o077) // its files are for its own user
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpuslice-broker:", err)
	}
	os.Exit(code)
}

type options struct {
	directory string
	service   bool
	version   bool
	config    broker.Config
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("gpuslice-broker", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.directory, "directory", "", "create the sockets and the token in this directory")
	flags.Func("vram", "how much clients may allocate, such as 64M or 7G", parseSize(&o.config.VRAM))
	flags.IntVar(&o.config.Device, "device", 0, "CUDA device ordinal, after CUDA_VISIBLE_DEVICES")
	flags.BoolVar(&o.config.Reserve, "reserve", false, "take all of --vram from the card at once, and hold it")
	flags.IntVar(&o.config.Clients, "clients", broker.DefaultClients, "how many clients may be connected at once")
	flags.DurationVar(&o.config.Linger, "linger", 0, "exit this long after the last connection has closed (0: never)")
	flags.DurationVar(&o.config.LoadTimeout, "load-timeout", broker.DefaultLoadTimeout, "exit if the driver compiles one module for longer than this")
	flags.Func("shared", "how much memory may be shared with clients (default 256M)", parseSize(&o.config.SharedBytes))
	flags.BoolVar(&o.service, "service", false, "started by the lease service: read everything from descriptors")
	flags.BoolVar(&o.version, "version", false, "print the version")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
		flags.SetOutput(os.Stdout)
		flags.PrintDefaults()
		return o, err
	case err != nil:
		return o, err
	case o.version || o.service:
		return o, nil
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: only flags are accepted (gpuslice-broker --help)", flags.Arg(0))
	case o.directory == "" || o.config.VRAM == 0:
		return o, errors.New("--directory and --vram are needed (gpuslice-broker --help)")
	case o.config.Clients < 1 || o.config.Clients > broker.MaxClients:
		return o, fmt.Errorf("--clients %d: 1 to %d are accepted", o.config.Clients, broker.MaxClients)
	case o.config.Linger < 0 || o.config.LoadTimeout <= 0:
		return o, errors.New("--linger must not be negative, and --load-timeout must be more than 0")
	}
	o.directory, err = filepath.Abs(o.directory)
	return o, err
}

// parseSize returns a parser for a flag of a size.
func parseSize(into *uint64) func(string) error {
	return func(text string) error {
		bytes, err := units.RAMInBytes(text)
		if err != nil || bytes <= 0 {
			return errors.New("a size such as 64M or 7G is accepted")
		}
		*into = uint64(bytes)
		return nil
	}
}

func run(args []string) (int, error) {
	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0, nil
	case err != nil:
		return broker.ExitUsage, err
	case o.version:
		fmt.Println("gpuslice-broker", api.Version)
		return 0, nil
	case o.service:
		return service()
	}
	return serveByHand(o.directory, o.config)
}

// service serves a lease. It reads its configuration from a descriptor, and reports on another whether it serves.
func service() (int, error) {
	signal.Ignore(unix.SIGPIPE) // its output goes to the lease service, which may end first
	config, err := broker.ReadConfig(os.NewFile(broker.ConfigFD, "configuration"))
	if err != nil {
		return broker.ExitUsage, err
	}
	if len(config.Environment) > 0 {
		killpoint.Pass("broker.configured")
		return broker.ExitFailed, execAgain(config)
	}
	ready := os.NewFile(broker.ReadyFD, "ready")
	sessions, shared, err := inherited()
	var b *broker.Broker
	if err == nil {
		b, err = start(config)
	}
	if reportErr := reportReady(ready, err); err != nil || reportErr != nil {
		return broker.ExitFailed, errors.Join(err, reportErr)
	}
	killpoint.Pass("broker.ready")
	return serve(b, sessions, shared)
}

// execAgain executes this program again with config.Environment: the dynamic loader reads its variables only at the start. It returns only an
// error.
func execAgain(config broker.Config) error {
	environment := append(os.Environ(), config.Environment...)
	config.Environment = nil
	file, err := broker.ConfigFile(config)
	if err != nil {
		return err
	}
	if err := unix.Dup3(int(file.Fd()), broker.ConfigFD, 0); err != nil {
		return fmt.Errorf("pass on the configuration: %w", err)
	}
	return fmt.Errorf("execute this program again: %w", unix.Exec("/proc/self/exe", os.Args, environment))
}

func inherited() (sessions, shared net.Listener, err error) {
	sessions, err = net.FileListener(os.NewFile(broker.SessionFD, "session.sock"))
	if err == nil {
		shared, err = net.FileListener(os.NewFile(broker.SharedFD, "shared.sock"))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("inherit the sockets: %w", err)
	}
	return sessions, shared, nil
}

// reportReady reports to the lease service whether the broker serves.
func reportReady(ready *os.File, failure error) error {
	var line broker.Ready
	if failure != nil {
		line.Error = failure.Error()
	}
	if err := json.NewEncoder(ready).Encode(line); err != nil {
		return fmt.Errorf("answer the lease service: %w", err)
	}
	return ready.Close()
}

// serveByHand serves a session. It makes the sockets and the token in directory.
func serveByHand(directory string, config broker.Config) (int, error) {
	if err := durable.MakePrivate(directory, 0o700); err != nil {
		return broker.ExitFailed, err
	}
	address, token := filepath.Join(directory, "session.sock"), filepath.Join(directory, "token")
	config.Token = broker.NewToken()
	disk := durable.Host()
	if _, err := disk.Replace(token, []byte(config.Token+"\n")); err != nil {
		return broker.ExitFailed, err
	}
	sessions, err := unixsocket.Listen("unix", address)
	if err != nil {
		return broker.ExitFailed, err
	}
	defer func() { _ = sessions.Close() }() // removes the socket's file, so that the next broker can listen there
	shared, err := unixsocket.Listen("unix", filepath.Join(directory, "shared.sock"))
	if err != nil {
		return broker.ExitFailed, err
	}
	defer func() { _ = shared.Close() }()
	b, err := start(config)
	if err != nil {
		return broker.ExitFailed, err
	}
	fmt.Printf("address unix:%s\ntoken file %s\n", address, token)
	return serve(b, sessions, shared)
}

func start(config broker.Config) (*broker.Broker, error) {
	if err := broker.Harden(); err != nil {
		return nil, err
	}
	config.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	return broker.New(config, broker.OpenDevice(config))
}

func serve(b *broker.Broker, sessions, shared net.Listener) (int, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	go func() {
		<-signals
		b.Stop()
	}()
	code, why := b.Serve(sessions, shared)
	if code != 0 {
		return code, errors.New(why)
	}
	return 0, nil
}
