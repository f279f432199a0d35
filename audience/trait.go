package audience

import (
	"strings"
	"unicode"
)

// TraitName returns the name of an audience in snake case: letters and digits of any script in
// lower case, "_" for each run of other characters except at the ends, and "_" between a lower-case
// and an upper-case letter. "VIP Users 2024" gives "vip_users_2024".
func TraitName(name string) string {
	var b strings.Builder
	gap, lower := false, false
	for _, r := range name {
		// A combining mark, such as a vowel sign, belongs to the letter before it.
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && (b.Len() == 0 || gap || !unicode.IsMark(r)) {
			gap, lower = true, false
			continue
		}
		if (gap || lower && unicode.IsUpper(r)) && b.Len() > 0 {
			b.WriteByte('_')
		}
		gap = false
		if !unicode.IsMark(r) {
			lower = unicode.IsLower(r)
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
