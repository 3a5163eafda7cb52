// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// etc is replaced by tests.
var etc = "/etc"

// checkUIDs returns an error if an id of the range belongs to a user of the host, or to a user's containers.
func checkUIDs(first, last uint32) error {
	for _, file := range []struct {
		name   string
		ranged bool
	}{{"passwd", false}, {"subuid", true}, {"subgid", true}} {
		path := etc + "/" + file.name
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
			if len(fields) < 3 {
				continue
			}
			from, count := fields[1], "1" // name:first:count
			if file.ranged {
				count = fields[2]
			} else {
				from = fields[2] // name:password:uid
			}
			begin, err := strconv.ParseUint(from, 10, 32)
			n, err2 := strconv.ParseUint(count, 10, 32)
			if err == nil && err2 == nil && n > 0 && begin <= uint64(last) && begin+n > uint64(first) {
				return fmt.Errorf("leases.uids = \"%d-%d\": %s gives ids from %d on to %s: choose a range that no user has", first, last, path, begin, fields[0])
			}
		}
	}
	return nil
}

// nextUID returns the least recently used id that belongs to no broker and no user, including users of network directories.
func nextUID(first, last, before uint32, used map[uint32]bool) (uint32, error) {
	uid := before
	for range last - first + 1 {
		if uid++; uid > last || uid < first {
			uid = first
		}
		if used[uid] {
			continue
		}
		_, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
		var unknown user.UnknownUserIdError
		if errors.As(err, &unknown) {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("no id in %d-%d is free for a broker", first, last)
}
