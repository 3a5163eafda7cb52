// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/json"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// follow calls f with each event that the enforcer writes to path, until stop is called. Of several in quick succession it may see the last alone.
// Without the file, as with an older enforcer, there are none.
func follow(path string, f func(api.Event)) (stop func()) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return func() {}
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_CLOSE_WRITE); err != nil {
		changes.Close()
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 16*unix.SizeofInotifyEvent)
		for {
			if _, err := changes.Read(buffer); err != nil {
				return // closed
			}
			show(path, f)
		}
	}()
	return func() {
		changes.Close()
		<-done
	}
}

// show calls f with the event in a file.
func show(path string, f func(api.Event)) {
	file, err := os.Open(path)
	if err != nil {
		return // the session has ended
	}
	defer file.Close()
	var e api.Event
	if json.NewDecoder(file).Decode(&e) == nil { // what follows the first event is of one that was overwritten
		f(e)
	}
}
