// SPDX-License-Identifier: Apache-2.0

//go:build tools

package main

import _ "k8s.io/kubernetes/cmd/kubectl"
