// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The limits are those of the table in docs/operate/bounds.md. Its third column belongs to package attach.
func TestTheLimitsAreTheDocumentedOnes(t *testing.T) {
	document, err := os.ReadFile("../../docs/operate/bounds.md")
	if err != nil {
		t.Fatal(err)
	}
	connections := func(c connections) string {
		return fmt.Sprintf("%d; of users but root %d, of each %d", c.all, c.others, c.each)
	}
	c, u := controlLimits, userLimits
	for _, row := range []string{
		fmt.Sprintf("connections at a time | %s | %s", connections(c.connections), connections(u.connections)),
		fmt.Sprintf("until the head of a request is there | %.0f s | %.0f s", c.header.Seconds(), u.header.Seconds()),
		fmt.Sprintf("until all of it is | %.0f s | %.0f s", c.read.Seconds(), u.read.Seconds()),
		fmt.Sprintf("for the answer to be taken | %.0f s | %.0f s", c.write.Seconds(), u.write.Seconds()),
		fmt.Sprintf("between two requests | %.0f s | %.0f s", c.idle.Seconds(), u.idle.Seconds()),
		fmt.Sprintf("size of a head and of a body | %d KiB, %d KiB | the same", maxHeader>>10, maxBody>>10),
		fmt.Sprintf("requests a second | | of each user %v KiB of bodies, a request counting as %d KiB more, after %v MiB; more wait", u.pace, perRequest, paceBurst*u.pace/1024),
		fmt.Sprintf("connections accepted, a second | | %v, after a burst of %v; %d wait in the kernel's queue, and who finds it full asks again |", u.accepts, u.accepts, usersQueue),
		fmt.Sprintf("followers of events | %d at a time, each hung up on that does not read | none", maxStreams),
	} {
		if !strings.Contains(string(document), "\n| "+row+" |") {
			t.Errorf("docs/operate/bounds.md has no row %q", row)
		}
	}
}
