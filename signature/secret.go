package signature

import (
	"fmt"
	"io"
	"log/slog"
)

// A Secret is a shared secret, used as it is: its bytes are the key.
//
// It hides itself from fmt, from log/slog and from encoders of text, such as
// encoding/json and encoding/xml: they print "[secret]", or nothing for an empty
// one. [Secret.Reveal] returns the value. Out of reach of its methods are
// encoding/gob, a Secret in an unexported field of a struct that fmt prints, and
// the verbs %p and %w where they do not belong, which go vet reports.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String returns "[secret]", or "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[secret]"
}

// GoString returns what String returns, quoted.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// Format prints what String returns, or GoString for %#v, whatever the
// verb: fmt itself would print the value with a verb that does not suit a
// string.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		io.WriteString(f, s.GoString())
		return
	}
	io.WriteString(f, s.String())
}

// LogValue returns what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns what String returns, so an encoded Secret cannot be
// decoded to the value again.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
