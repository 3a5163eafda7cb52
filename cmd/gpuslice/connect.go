// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"strconv"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/client"
)

// connect returns a client of the host's enforcer; nothing is sent before its first question.
func connect(c *cli.Context) *client.Client {
	return client.New(socket(c))
}

// socket is the control socket, or the users' if that is the one that may be used.
func socket(c *cli.Context) string {
	control := c.String("socket")
	if !c.IsSet("socket") && unix.Access(control, unix.W_OK) != nil {
		if users := c.String("session-socket"); unix.Access(users, unix.W_OK) == nil {
			return users
		}
	}
	return control
}

// showToken makes each question of this program show the token that --token names.
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

// readToken reads a session's id and token from a file, or from a descriptor if its number is given: so a token can be handed
// on to who may not read the file, and is in no list of processes and no environment.
func readToken(from string) (id string, token api.Token, err error) {
	if from == "" {
		return "", "", errors.New("a file with a session's token is accepted, or the number of a descriptor that is open for one")
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
