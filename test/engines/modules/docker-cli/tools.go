// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the docker command: `go install` refuses it, since it has no go.mod of its own.
package tools

import _ "github.com/docker/cli/cmd/docker"
