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
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
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

const (
	// A user may show maxWrong wrong tokens at once, and then one each WrongInterval. A token cannot be guessed in the age of the
	// universe; this is so that guessing costs nobody anything, and is noticed.
	maxWrong      = 10
	WrongInterval = 6 * time.Second
	// maxGuessers is of how many users at a time that is known; others are refused as if they had guessed.
	maxGuessers = 1024
)

// Guesses is who showed wrong tokens.
type Guesses struct {
	mu guard.Mutex[guard.Leaf] // guards by
	by map[uint32]*rate.Limiter
}

// Wait says whether a user has shown so many wrong tokens that another one is not even compared.
func (g *Guesses) Wait(now time.Time, uid uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for user, limiter := range g.by {
		if limiter.TokensAt(now) >= maxWrong {
			delete(g.by, user)
		}
	}
	limiter := g.by[uid]
	return limiter != nil && limiter.TokensAt(now) < 1 || limiter == nil && len(g.by) >= maxGuessers
}

// Wrong notes a wrong token, and says whether it is the first one of the user lately.
func (g *Guesses) Wrong(now time.Time, uid uint32) (first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.by == nil {
		g.by = make(map[uint32]*rate.Limiter)
	}
	first = g.by[uid] == nil
	if first {
		g.by[uid] = rate.NewLimiter(rate.Every(WrongInterval), maxWrong)
	}
	g.by[uid].AllowN(now, 1)
	return first
}
