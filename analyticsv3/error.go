package analytics

import (
	"errors"
	"fmt"

	root "github.com/hookferry/analytics"
)

var (
	// ErrClosed is returned by Enqueue and Close after Close.
	ErrClosed = root.ErrClosed

	// ErrTooManyRequests is returned by Enqueue, and reported to the Callback, while 64 MB
	// of messages wait. The message is lost.
	ErrTooManyRequests = errors.New("analytics: too many messages wait to be sent")

	// ErrMessageTooBig is returned by Enqueue, and reported to the Callback, for a message
	// of more than 32 KB, which is 32,768 bytes of JSON. The message is lost.
	ErrMessageTooBig = errors.New("analytics: the message has more than 32768 bytes")
)

// A FieldError says which field of a message is missing.
type FieldError struct {
	Type  string // "analytics.Track" and so on
	Name  string // the Go field
	Value any    // the value of the field
}

func (e FieldError) Error() string {
	return fmt.Sprintf("%s.%s: invalid field value: %#v", e.Type, e.Name, e.Value)
}

// A ConfigError says which field of a Config cannot be used, and why.
type ConfigError struct {
	Reason string
	Field  string
	Value  any // nil for Endpoint, which may hold a password
}

func (e ConfigError) Error() string {
	value := ""
	if e.Value != nil {
		value = fmt.Sprintf(": %#v", e.Value)
	}
	return fmt.Sprintf("analytics.NewWithConfig: %s (analytics.Config.%s%s)", e.Reason, e.Field, value)
}
