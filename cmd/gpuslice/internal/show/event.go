// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
)

const longestKind = len(api.EventAttachRefused)

// EventTable defines the fields and filters of events, for all formats except lines of text.
var EventTable = table.Table[api.Event]{
	ID:     position,
	Object: func(e api.Event) any { return e },
	Columns: []table.Column[api.Event]{
		{Head: "KIND", Field: "Kind", Text: func(e api.Event) string { return string(e.Kind) }},
		{Head: "TIME", Field: "Time", Text: func(e api.Event) string { return e.Time.Local().Format(time.RFC3339) }},
		{Head: "POSITION", Field: "Position", Text: position},
		{Head: "SLICE", Field: "Slice", Text: func(e api.Event) string { return e.Slice }},
		{Head: "CONTAINER", Field: "Container", Text: func(e api.Event) string { return e.Container }},
		{Head: "TENANT", Field: "Tenant", Text: func(e api.Event) string { return e.Tenant }},
		{Head: "POOL", Field: "Pool", Text: func(e api.Event) string { return e.Pool }},
		{Head: "DEVICE", Field: "Device", Text: func(e api.Event) string { return e.Device }},
		{Head: "PID", Field: "PID", Text: func(e api.Event) string {
			if e.PID == 0 {
				return ""
			}
			return strconv.Itoa(e.PID)
		}},
		{Head: "COMMAND", Field: "Command", Text: func(e api.Event) string { return e.Command }},
		{Head: "TEXT", Field: "Text", Text: Sentence},
	},
	Filters: []table.Filter[api.Event]{
		table.OneOf("kind", func(e api.Event) string { return string(e.Kind) }, eventKinds()...),
		{Key: "slice", Matches: func(e api.Event, value string) bool { return value != "" && begins(value, e.Slice) }},
		{Key: "container", Matches: func(e api.Event, value string) bool { return value != "" && begins(value, e.Container) }},
		table.Is("tenant", func(e api.Event) string { return e.Tenant }),
		table.Is("pool", func(e api.Event) string { return e.Pool }),
		{Key: "device", Matches: func(e api.Event, value string) bool { return Indices(nil).Is(value, e.Device) }},
	},
}

func eventKinds() []string {
	var all []string
	for _, kind := range api.EventKinds() {
		all = append(all, string(kind))
	}
	return all
}

// position returns the value of `events --since` to begin after the event.
func position(e api.Event) string { return e.Instance + ":" + strconv.FormatUint(e.Seq, 10) }

// Event prints one line: time, kind, slice, and a sentence. Its columns have a fixed width, since later events are unknown.
func Event(out io.Writer, e api.Event, of Indices, whole bool) error {
	id, on := e.Slice, e.Device
	if !whole {
		id, on = shortID(id), of.Name(on)
	}
	text := sentence(e, on)
	if path := e.Path(); path != "" && e.Kind == api.EventRegistered {
		text = path + " " + text
	}
	if id = cmp.Or(id, e.Pool); id == "" {
		id = "-"
	}
	_, err := fmt.Fprintf(out, "%s  %-*s  %-*s  %s\n",
		e.Time.Local().Format("2006-01-02 15:04:05"), longestKind, e.Kind, Short, id, Plain(text))
	return err
}

// Sentence says what happened, with whole UUIDs.
func Sentence(e api.Event) string { return sentence(e, e.Device) }

func sentence(e api.Event, on string) string {
	switch e.Kind {
	case api.EventRegistered:
		if e.TTL > 0 {
			return fmt.Sprintf("began with process %d, for %s", e.PID, api.FormatTTL(e.TTL))
		}
		return fmt.Sprintf("began with process %d", e.PID)
	case api.EventReleased:
		switch e.Cause {
		case "asked":
			return "ended: released on request"
		case "ended":
			return "ended: its processes exited"
		case "expired":
			return "ended: it expired"
		default:
			return "ended: " + e.Cause
		}
	case api.EventRefused:
		return refused(e, on)
	case api.EventFreed:
		return fmt.Sprintf("%s on %s freed: held by processes that have exited", api.FormatSize(e.Bytes), on)
	case api.EventSuspended:
		return "suspended" + movedBytes(e, on, " on %s is in host memory")
	case api.EventResumed:
		return "resumed" + movedBytes(e, on, " is back on %s")
	case api.EventEvicted:
		return "evicted" + movedBytes(e, on, " on %s is in host memory")
	case api.EventReturned:
		return "returned" + movedBytes(e, on, " is back on %s")
	case api.EventUnlimited:
		return "the driver does not hold the container to its quota on " + on + ", the interceptor does: " + e.Cause
	case api.EventDenied:
		return denied(e, on)
	case api.EventBypass, api.EventCleared, api.EventKilled:
		return bypass(e, on)
	case api.EventChanged:
		return changed(e, on)
	case api.EventExpired:
		return "expired: it gets no more memory, and its processes are ended"
	case api.EventAttachRefused:
		return attachRefused(e)
	case api.EventPoolCreated:
		return "pool " + e.Pool + " made" + poolLimit(e, on)
	case api.EventPoolChanged:
		return "pool " + e.Pool + " has another quota" + poolLimit(e, on)
	case api.EventPoolDeleted:
		return "pool " + e.Pool + " deleted"
	case api.EventMissed:
		if e.Cause == api.MissedRestarted {
			return "gpusliced was restarted: earlier events that were not read are lost" + missedSince(e.Count)
		}
		return "no longer kept: " + Count(e.Count, "event") + " before the next one"
	default: // of a newer enforcer
		return "see --json"
	}
}

// movedBytes returns "" for a slice that held nothing.
func movedBytes(e api.Event, on, format string) string {
	if e.Device == "" {
		return ""
	}
	return ": " + api.FormatSize(e.Bytes) + fmt.Sprintf(format, on)
}

func missedSince(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", and so are its first %d", n)
}

// poolLimit returns "" if no device was known.
func poolLimit(e api.Event, on string) string {
	if e.Device == "" {
		return ""
	}
	return ": " + changed(e, on)
}

func attachRefused(e api.Event) string {
	who := fmt.Sprintf("%d processes", e.Count)
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	if e.Command != "" {
		who += " (" + e.Command + ")"
	}
	why, ok := map[string]string{
		"stranger": "not of the slice",
		"full":     "the slice has as many processes as it can",
		"closed":   "the slice gets nothing more, or is suspended or evicted",
		"released": "the slice was released",
	}[e.Cause]
	if !ok {
		why = e.Cause
	}
	return who + " got no place in the ledger: " + why
}

func denied(e api.Event, on string) string {
	whose := "the slice"
	if e.Pool != "" {
		whose = "pool " + e.Pool
	}
	if e.Device == "" {
		return fmt.Sprintf("nothing more is given in %s: %s", whose, e.Cause)
	}
	return fmt.Sprintf("a process uses %s, and %s has nothing there: %s", on, whose, e.Cause)
}

func bypass(e api.Event, on string) string {
	if e.Cause == api.BypassOverwritten {
		if e.Kind == api.EventKilled {
			return fmt.Sprintf("%d processes killed: the ledger was overwritten", e.Count)
		}
		whose := "the ledger"
		if e.Pool != "" {
			whose += " of pool " + e.Pool
		}
		return fmt.Sprintf("%s was overwritten; action: %s", whose, e.Action)
	}
	who := fmt.Sprintf("process %d", e.PID)
	if e.Command != "" {
		who += " (" + e.Command + ")"
	}
	how := "beyond its charges"
	if e.Cause == api.BypassUnattached {
		how = "and never attached" + without(e.Preload)
	}
	switch {
	case e.Kind == api.EventCleared:
		return fmt.Sprintf("%s does not hold %s on %s any more", who, api.FormatSize(e.Bytes), on)
	case e.Kind == api.EventKilled && e.Count > 1:
		return fmt.Sprintf("%s killed, with %s of its slice: it held %s on %s %s", who, Count(e.Count-1, "other"), api.FormatSize(e.Bytes), on, how)
	case e.Kind == api.EventKilled:
		return fmt.Sprintf("%s killed: it held %s on %s %s", who, api.FormatSize(e.Bytes), on, how)
	}
	return fmt.Sprintf("%s holds %s on %s %s; action: %s", who, api.FormatSize(e.Bytes), on, how, e.Action)
}

// without returns the reason, in brackets, why the loader did not load the interceptor; "" if it is unknown.
func without(p api.Preload) string {
	switch p {
	case api.PreloadMoved:
		return " (the container's ld.so.preload is not in its /etc any more)"
	case api.PreloadCovered:
		return " (something is mounted over its /etc/ld.so.preload)"
	case api.PreloadNone:
		return " (its root has no ld.so.preload of ours: chroot, or unmounted)"
	}
	return ""
}

func changed(e api.Event, on string) string {
	switch {
	case e.Cause == "ttl" && e.TTL == 0:
		return "does not expire"
	case e.Cause == "ttl":
		return fmt.Sprintf("expires in %s", api.FormatTTL(e.TTL))
	case e.Device == "":
		return "its quotas are others, of devices that it does not use yet"
	}
	excess := ""
	if e.Limit != nil && e.Used != nil && e.Overhead != nil && *e.Used+*e.Overhead > *e.Limit {
		excess = ": it is over that, and gets nothing until it has given back enough"
	}
	return fmt.Sprintf("its limit on %s is %s, used %s, overhead %s%s", on, size(e.Limit), size(e.Used), size(e.Overhead), excess)
}

func size(bytes *uint64) string {
	if bytes == nil {
		return "unknown"
	}
	return api.FormatSize(*bytes)
}

func refused(e api.Event, on string) string {
	var b strings.Builder
	if e.Requested > 0 {
		fmt.Fprintf(&b, "%s of %s", e.Call, api.FormatSize(e.Requested))
		if e.Count > 1 {
			fmt.Fprintf(&b, ", and %d before it,", e.Count-1)
		}
	} else {
		b.WriteString(Count(e.Count, "request"))
	}
	fmt.Fprintf(&b, " on %s", on)
	if e.PID != 0 {
		fmt.Fprintf(&b, " by process %d", e.PID)
	}
	if e.Command != "" {
		fmt.Fprintf(&b, " (%s)", e.Command)
	}
	whose := ""
	if e.Pool != "" {
		whose = " of pool " + e.Pool
	}
	fmt.Fprintf(&b, ": limit%s %s", whose, size(e.Limit))
	if e.Requested > 0 {
		fmt.Fprintf(&b, ", used %s, overhead %s", size(e.Used), size(e.Overhead))
	}
	return b.String()
}
