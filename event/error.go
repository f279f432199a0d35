package event

// A Code says what is wrong with a call. There are no codes but those below, so a
// Code can be a label of a metric.
type Code string

// The codes.
const (
	// CodeMalformed: not JSON, or nested too deeply.
	CodeMalformed Code = "malformed_json"
	// CodeTooLarge: larger than analytics.MaxCallSize.
	CodeTooLarge Code = "too_large"
	// CodeType: the type of call is missing or unknown.
	CodeType Code = "unknown_type"
	// CodeMissing: a field that the type requires is missing or empty.
	CodeMissing Code = "missing_field"
	// CodeWrongType: a field, or the call, is JSON of the wrong type.
	CodeWrongType Code = "wrong_type"
	// CodeTimestamp: a timestamp has none of the accepted forms.
	CodeTimestamp Code = "invalid_timestamp"
	// CodeMessageID: the messageId has more than analytics.MaxMessageID characters.
	CodeMessageID Code = "invalid_message_id"
)

// A CallError says why a call is refused. Its text holds no value of the call.
type CallError struct {
	// Field is the name of the field, such as "userId". It is "" for the call as a whole.
	Field string
	// Code says what is wrong.
	Code Code
	// Problem says what is wrong in words, such as "is required".
	Problem string
}

func (e *CallError) Error() string { return "event: call: " + e.Message() }

// Message returns the text of the error without the name of this package.
func (e *CallError) Message() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + " " + e.Problem
}
