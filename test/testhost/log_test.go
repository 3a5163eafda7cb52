// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"fmt"
	"io"
	"testing"
)

// Needs the race detector: reading an ended test is a race.
func TestOutputAfterATestsEndIsDropped(t *testing.T) {
	var log io.Writer
	said := make(chan bool)
	t.Run("which ends", func(t *testing.T) {
		log = Log(t)
		go func() {
			defer close(said)
			for range 1000 {
				fmt.Fprintln(log, "something")
			}
		}()
	})
	<-said
	if n, err := fmt.Fprintln(log, "late"); n != 5 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
