// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/enforcer/client"
)

// connect returns a client of the host's enforcer; nothing is sent before its first question.
func connect(c *cli.Context) *client.Client {
	return client.New(c.String("socket"))
}
