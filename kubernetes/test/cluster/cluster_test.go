//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPIServerAcceptsTheManifests(t *testing.T) {
	c := Start(t, Options{})
	if out, err := c.Kubectl("", "apply", "-k", "../../deploy/base"); err != nil {
		t.Fatal(out, err)
	}
	if _, err := c.Client.ResourceV1().DeviceClasses().Get(t.Context(), "vram.gpuslice.io", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
}
