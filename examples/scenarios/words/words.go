// Package words counts the words of a text.
package words

import "strings"

// Count gives the number of words in text.
func Count(text string) int {
	return len(strings.Split(text, " "))
}
