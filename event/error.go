package event

// A Code says what is wrong with a call. The constants are all Codes that there are, so a Code can
// be a label of a metric.
type Code string

const (
	CodeMalformed Code = "malformed_json"     // not JSON, or nested too deeply
	CodeTooLarge  Code = "too_large"          // larger than analytics.MaxCallSize
	CodeType      Code = "unknown_type"       // the type of call is missing or unknown
	CodeMissing   Code = "missing_field"      // a field that the type requires is missing or empty
	CodeWrongType Code = "wrong_type"         // a field, or the call, is JSON of the wrong type
	CodeMessageID Code = "invalid_message_id" // more than analytics.MaxMessageID characters
)

// A CallError says why a call is refused. Its text holds no value of the call.
type CallError struct {
	Field   string // such as "userId", "" for the call as a whole
	Code    Code
	Problem string // what is wrong in words, such as "is required"
}

func (e *CallError) Error() string { return "event: call: " + e.Message() }

// Message returns the text of the error without the name of this package.
func (e *CallError) Message() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + " " + e.Problem
}
