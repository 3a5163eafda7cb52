// SPDX-License-Identifier: Apache-2.0

package api

// Nearest returns the known word that word may be a misspelling of, or "".
func Nearest(word string, known []string) (near string) {
	for _, k := range known {
		if d := distance(word, k); d <= 1+len(word)/4 && d < len(word) && (near == "" || d < distance(word, near)) {
			near = k
		}
	}
	return near
}

// distance returns the number of insertions, deletions and changes of letters between two words (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := left
			if a[i] != b[j] {
				change++
			}
			left = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
