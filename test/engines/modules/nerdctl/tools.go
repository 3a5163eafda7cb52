// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins nerdctl: `go install` refuses it, since its go.mod has a replace directive.
package tools

import _ "github.com/containerd/nerdctl/v2/cmd/nerdctl"
