package admin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// An operation has the parts of an operation in openapi.json that the tests read.
type operation struct {
	OperationID string
	Responses   map[string]json.RawMessage
}

// operation returns the operation of a route, which its pattern names, or nil if there is none.
func (d *description) operation(pattern string) *operation {
	method, path, _ := strings.Cut(pattern, " ")
	text := d.Paths[path][strings.ToLower(method)]
	if text == nil {
		return nil
	}
	of := new(operation)
	if err := json.Unmarshal(text, of); err != nil {
		panic(err)
	}
	return of
}

// TestOpenAPIIsWellFormed checks rules of OpenAPI 3.1 that the schemas do not check: the license,
// that the ids of operations differ, and that references lead somewhere. It also checks that every
// operation describes the errors that any operation may return.
func TestOpenAPIIsWellFormed(t *testing.T) {
	var whole map[string]any
	if err := json.Unmarshal(openAPI, &whole); err != nil {
		t.Fatal(err)
	}
	license, _ := at(whole, "info/license").(map[string]any)
	if license["name"] == nil || (license["identifier"] == nil) == (license["url"] == nil) {
		t.Errorf("info.license is %v, want a name, and an identifier or a url", license)
	}
	ids := map[string]string{}
	for path, item := range doc().Paths {
		for method := range item {
			if method == "parameters" {
				continue
			}
			of := doc().operation(strings.ToUpper(method) + " " + path)
			what := method + " " + path
			if other := ids[of.OperationID]; of.OperationID == "" || other != "" {
				t.Errorf("%s has the operationId %q, want an id of its own; %q has the same", what, of.OperationID, other)
			}
			ids[of.OperationID] = what
			for _, status := range []string{"200", "400", "401", "403", "default"} {
				if of.Responses[status] == nil && !(status == "401" && path == api.AccessPath) {
					t.Errorf("%s does not describe the answer %s", what, status)
				}
			}
			makes := method == "put" && path == api.DestinationPath
			if strings.Contains(path, "{") && of.Responses["404"] == nil && !makes {
				t.Errorf("%s does not describe the answer 404", what)
			}
		}
	}
	var refer func(where string, value any)
	refer = func(where string, value any) {
		switch value := value.(type) {
		case map[string]any:
			if to, ok := value["$ref"].(string); ok && at(whole, strings.TrimPrefix(to, "#/")) == nil {
				t.Errorf("%s refers to %s, which does not exist", where, to)
			}
			for name, v := range value {
				refer(where+"/"+name, v)
			}
		case []any:
			for i, v := range value {
				refer(fmt.Sprintf("%s/%d", where, i), v)
			}
		}
	}
	refer("", whole)
}

// at returns the value at a path in a document, or nil.
func at(value any, path string) any {
	for name := range strings.SplitSeq(path, "/") {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	return value
}
