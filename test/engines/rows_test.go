//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

// rows are the engines that are tried.
var rows = []row{
	{name: "runc 1.1", version: []string{"runc-1.1"}, make: func() engine { return &oci{runtime: []string{"runc-1.1", "runc"}} }},
	{name: "runc 1.4", version: []string{"runc-1.4"}, make: func() engine { return &oci{runtime: []string{"runc-1.4", "runc"}} }},
}
