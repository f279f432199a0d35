package signature

import (
	"fmt"
	"io"
	"log/slog"
)

// A Secret is a shared secret. For X-Signature its bytes are the key.
//
// A Secret hides its value from fmt, from log/slog and from encoders of text, such as encoding/json
// and encoding/xml. They print "[secret]", or nothing for an empty Secret. [Secret.Reveal] returns
// the value. A Secret cannot hide its value in three cases: from encoding/gob; from fmt, if the
// Secret is in an unexported field of a struct; and from the verbs %p and %w where these are not
// allowed, a mistake that go vet reports.
type Secret string

// Reveal returns the value of the secret.
func (s Secret) Reveal() string { return string(s) }

// String returns "[secret]", or "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[secret]"
}

// GoString returns the result of String, quoted.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// Format prints the result of String, or the result of GoString for %q and %#v. It does so for
// every verb, because fmt itself would print the value for a verb that does not suit a string.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		io.WriteString(f, s.GoString())
		return
	}
	io.WriteString(f, s.String())
}

// LogValue returns the result of String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns the result of String. So decoding an encoded Secret does not restore
// its value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
