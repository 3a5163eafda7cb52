// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/daemon/config"
)

// connect returns a client of the host's enforcer. It does no I/O.
func connect(c *cli.Context) *client.Client {
	return client.New(socket(c))
}

// socket returns the socket on which this user can reach the host's enforcer.
func socket(c *cli.Context) string {
	socket, _ := sockets(c, api.DefaultConfig)
	return socket
}

// sockets returns the control socket, or the users' socket if this user may use only that. Without flags and variables it takes
// them from gpusliced's configuration.
func sockets(c *cli.Context, configuration string) (socket string, forUsers bool) {
	if c.IsSet("socket") {
		return c.String("socket"), false
	}
	control := socketOf(c, "socket", configuration, func(file config.Config) string { return file.Enforcer.Socket })
	users := socketOf(c, "session-socket", configuration, func(file config.Config) string { return file.Sessions.Socket })
	return choose(control, users, func(path string) bool { return unix.Access(path, unix.W_OK) == nil })
}

// socketOf returns the socket of a flag or its variable, else that of the configuration.
func socketOf(c *cli.Context, flag, configuration string, configured func(config.Config) string) string {
	if !c.IsSet(flag) {
		if file, err := config.Load(configuration); err == nil {
			return configured(file)
		}
	}
	return c.String(flag)
}

// choose returns the control socket, or the users' socket if only that may be used. A users' socket that refuses connections does
// not count if the control socket is missing or served.
func choose(control, users string, may func(path string) bool) (socket string, forUsers bool) {
	_, err := os.Lstat(control)
	if may(control) || !may(users) || refuses(users) && (errors.Is(err, fs.ErrNotExist) || listens(control)) {
		return control, false
	}
	return users, true
}

func refuses(path string) bool {
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// listens reports whether a gpusliced of this network namespace listens at path. /proc/net/unix is readable for all users.
func listens(path string) bool {
	const acceptsConnections, flags, name = "00010000", 3, 7
	known, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(known)) {
		fields := strings.Fields(line)
		if len(fields) > name && fields[flags] == acceptsConnections && (fields[name] == path || server.MadeAs(fields[name], path)) {
			return true
		}
	}
	return false
}

// showToken adds the token of --token to each request of this program.
func showToken(c *cli.Context) error {
	if !c.IsSet("token") {
		return nil
	}
	_, token, err := readToken(c.String("token"))
	if err != nil {
		return misuse("--token %q: %w", c.String("token"), err)
	}
	c.Context = api.WithToken(c.Context, token)
	return nil
}

// readToken reads a session's id and token from a file, or from a descriptor if its number is given. Through a descriptor, a user
// without access to the file can get the token without exposing it in arguments or the environment.
func readToken(from string) (id string, token api.Token, err error) {
	if from == "" {
		return "", "", errors.New("give a file with a session's token, or the number of an open descriptor of one")
	}
	var file *os.File
	if fd, err := strconv.ParseUint(from, 10, 31); err == nil {
		file = os.NewFile(uintptr(fd), "descriptor "+from)
	} else if file, err = os.Open(from); err != nil {
		return "", "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, api.MaxTokenFile))
	if err != nil {
		return "", "", err
	}
	return api.ParseTokenFile(string(text))
}
