package config

import "encoding/json"

// ParseDestination reads and checks a destination that a client of the admin API sends: a
// JSON object with the keys that a destination has in the file. An id may be missing. Texts
// are what they say: ${NAME} and file:PATH have no meaning, and certificates and keys are PEM
// themselves, so that no client reads the variables or the files of the server. The caller
// bounds the size of the document. The error is an *Error, whose keys begin at the object.
func ParseDestination(document map[string]any) (*Destination, error) {
	text, err := json.Marshal(document) // which is YAML, too: all that is not ASCII stands as itself
	if err != nil {
		return nil, &Error{Problems: []Problem{{Text: "is not JSON"}}}
	}
	d := newDecoder("", nil)
	d.literal = true
	destination := DefaultDestination()
	destination.ID = "test"
	d.decode(text, &destination)
	c := checker{unread: d.problems}
	c.name("id", destination.ID)
	c.destination("", &destination)
	if problems := append(d.problems, c.problems...); len(problems) > 0 {
		return nil, &Error{Problems: problems}
	}
	return &destination, nil
}
