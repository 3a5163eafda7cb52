// SPDX-License-Identifier: Apache-2.0

// Package session has what only sessions have: tokens, the processes that joined, those that remain after the end, and users' limits.
// It decides nothing about a slice, and writes nothing but a token's file and the access list of a socket.
package session

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/api"
)

// Token is the SHA-256 of a session's token; zero is that of none. A token admits processes that do not descend from the session's first one:
// of another terminal, a batch system, another user to whom it was given. It is made with the session, stands in a file of the
// session's directory that the session's user alone can read, and goes with that. Neither the enforcer's memory nor its state says what to
// show.
type Token [sha256.Size]byte

// NewToken makes a session's token, and its file in dir: of that user and group, or of this process's own if they are negative.
func NewToken(dir, id string, uid, gid int) (Token, error) {
	token := make([]byte, sha256.Size)
	if _, err := rand.Read(token); err != nil {
		return Token{}, err
	}
	file, err := os.OpenFile(filepath.Join(dir, api.TokenName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Token{}, err
	}
	_, err = file.WriteString(api.FormatTokenFile(id, token))
	if uid >= 0 {
		err = errors.Join(err, file.Chown(uid, gid))
	}
	return sha256.Sum256(token), errors.Join(err, file.Close())
}

// Is compares in constant time.
func (t Token) Is(shown api.Token) bool {
	bytes, ok := shown.Bytes()
	sum := sha256.Sum256(bytes)
	return subtle.ConstantTimeCompare(sum[:], t[:]) == 1 && ok
}
