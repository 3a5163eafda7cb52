// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Event prints one line: when, what, whose, and a sentence. The columns are of fixed width: the next event
// may be long in coming.
func Event(out io.Writer, e api.Event, whole bool) error {
	id := e.Slice
	if !whole {
		id = shortID(id)
	}
	if id == "" {
		id = "-"
	}
	_, err := fmt.Fprintf(out, "%s  %-10s  %-*s  %s\n",
		e.Time.Local().Format("2006-01-02 15:04:05"), e.Kind, Short, id, sentence(e, whole))
	return err
}

func sentence(e api.Event, whole bool) string {
	on := device(api.DeviceUse{Device: e.Device}, whole)
	switch e.Kind {
	case api.EventRegistered:
		return fmt.Sprintf("began with process %d", e.PID)
	case api.EventReleased:
		switch e.Cause {
		case "asked":
			return "ended: it was asked for"
		case "ended":
			return "ended: its processes have"
		default:
			return "ended: " + e.Cause
		}
	case api.EventRefused:
		return refused(e, on)
	case api.EventRecovered:
		return fmt.Sprintf("%s on %s given back for processes that ended holding it", api.FormatSize(e.Bytes), on)
	case api.EventMissed:
		return fmt.Sprintf("%d events before the next one are not kept any more", e.Count)
	default: // of a newer enforcer
		return "see --json"
	}
}

func refused(e api.Event, on string) string {
	var b strings.Builder
	if e.Requested > 0 {
		fmt.Fprintf(&b, "%s of %s", e.Call, api.FormatSize(e.Requested))
		if e.Count > 1 {
			fmt.Fprintf(&b, ", and %d before it,", e.Count-1)
		}
	} else {
		fmt.Fprintf(&b, "%d requests", e.Count)
	}
	fmt.Fprintf(&b, " on %s", on)
	if e.PID != 0 {
		fmt.Fprintf(&b, " by process %d", e.PID)
	}
	if e.Command != "" {
		fmt.Fprintf(&b, " (%s)", e.Command)
	}
	fmt.Fprintf(&b, ": limit %s", api.FormatSize(e.Limit))
	if e.Requested > 0 {
		fmt.Fprintf(&b, ", used %s, overhead %s", api.FormatSize(e.Used), api.FormatSize(e.Overhead))
	}
	return b.String()
}
