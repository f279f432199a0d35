package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// A description has the parts of openapi.json that the tests read.
type description struct {
	OpenAPI    string `json:"openapi"`
	Paths      map[string]map[string]json.RawMessage
	Components struct {
		Schemas map[string]schema
	}
	compiler *jsonschema.Compiler
}

type schema struct {
	Type        any // a string, or a list of strings
	Description string
	Format      string
	Ref         string `json:"$ref"`
	Items       *schema
	Properties  map[string]schema
	Required    []string
	// Values is the schema of the values of a map.
	Values *schema `json:"additionalProperties"`
}

// doc returns the description. It reads and compiles openapi.json once.
var doc = sync.OnceValue(func() *description {
	d := new(description)
	if err := json.Unmarshal(openAPI, d); err != nil {
		panic(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(openAPI))
	if err != nil {
		panic(err)
	}
	d.compiler = jsonschema.NewCompiler()
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource("openapi.json", value); err != nil {
		panic(err)
	}
	return d
})

var compiling sync.Mutex

// schemaAt returns the schema of the answers of an operation with a status and a content type. The
// pattern of its route names the operation.
func (d *description) schemaAt(pattern string, status int, kind string) (*jsonschema.Schema, error) {
	pointer := "/components/responses/Error"
	if status/100 == 2 {
		method, path, _ := strings.Cut(pattern, " ")
		pointer = "/paths/" + pointerPart(path) + "/" + strings.ToLower(method) + "/responses/" + fmt.Sprint(status)
	}
	compiling.Lock()
	defer compiling.Unlock()
	return d.compiler.Compile("openapi.json#" + pointer + "/content/" + pointerPart(kind) + "/schema")
}

func pointerPart(s string) string {
	s = strings.NewReplacer("~", "~0", "/", "~1").Replace(s)
	return strings.NewReplacer("{", "%7B", "}", "%7D").Replace(s)
}

// conforms checks that an answer is as documented. text is the whole answer, or a line of a stream.
func (s *server) conforms(resp *http.Response, text []byte) {
	s.t.Helper()
	if s.handler == nil || resp.Request.Method == "HEAD" {
		return
	}
	_, pattern := s.handler.mux.Handler(resp.Request)
	if of := doc().operation(pattern); of != nil && resp.StatusCode/100 == 4 && of.Responses[fmt.Sprint(resp.StatusCode)] == nil {
		s.t.Errorf("%s: openapi.json does not have the answer %d: %s", pattern, resp.StatusCode, text)
	}
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	sch, err := doc().schemaAt(pattern, resp.StatusCode, kind)
	if err != nil {
		s.t.Errorf("%s: openapi.json has no answer %d of the type %s: %v", pattern, resp.StatusCode, kind, err)
		return
	}
	var value any = string(text)
	if kind != api.LinesType {
		if value, err = jsonschema.UnmarshalJSON(bytes.NewReader(text)); err != nil {
			s.t.Errorf("%s: the answer is not JSON: %v: %s", pattern, err, text)
			return
		}
	}
	if err := sch.Validate(value); err != nil {
		s.t.Errorf("%s %d: the answer is not as documented: %v\n%s", pattern, resp.StatusCode, err, text)
	}
}

// TestOpenAPIHasTheRoutes shows that openapi.json and the routes have the same operations.
func TestOpenAPIHasTheRoutes(t *testing.T) {
	d := doc()
	if !strings.HasPrefix(d.OpenAPI, "3.1.") {
		t.Errorf("the version of OpenAPI is %q, want 3.1", d.OpenAPI)
	}
	served, documented := []string{"POST " + api.PublishPath}, []string(nil) // which the other listener serves
	for _, r := range routes() {
		served = append(served, r.method+" "+r.path)
	}
	for path, item := range d.Paths {
		for method := range item {
			if method != "parameters" {
				documented = append(documented, strings.ToUpper(method)+" "+path)
			}
		}
	}
	slices.Sort(served)
	slices.Sort(documented)
	diff(t, "operations (routes, documented)", documented, served)
}

// TestOpenAPIHasTheParameters shows that openapi.json lists each wildcard of a path as a parameter,
// and each query parameter that a handler knows.
func TestOpenAPIHasTheParameters(t *testing.T) {
	s := newServer(t, nil)
	for path, item := range doc().Paths {
		var of []struct {
			Ref string `json:"$ref"`
		}
		if p := item["parameters"]; p != nil {
			if err := json.Unmarshal(p, &of); err != nil {
				t.Fatal(err)
			}
		}
		var want, got []string
		for _, part := range strings.Split(path, "/") {
			if name, ok := strings.CutPrefix(part, "{"); ok {
				want = append(want, "#/components/parameters/"+strings.TrimSuffix(name, "}"))
			}
		}
		for _, p := range of {
			got = append(got, p.Ref)
		}
		diff(t, path, got, want)
		for method, text := range item {
			if method != "get" {
				continue
			}
			var operation struct{ Parameters []struct{ Name string } }
			if err := json.Unmarshal(text, &operation); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{
				api.ParamDestination, api.ParamType, api.ParamKind, api.ParamQuery, api.ParamLimit, api.ParamAfter,
				api.ParamReason, api.ParamFrom, api.ParamTo, api.ParamRange, api.ParamID, api.ParamSource, api.ParamState, api.ParamSort,
				api.ParamOrder, api.ParamUser, api.ParamEvent,
			} {
				documented := slices.ContainsFunc(operation.Parameters, func(p struct{ Name string }) bool { return p.Name == name })
				// Handlers refuse unknown parameters before wrong values. A wrong kind keeps
				// the live stream from starting.
				query := "?" + name + "=x"
				if path == api.LivePath {
					query += "&kind=wrong"
				}
				_, answer := s.do(s.request("GET", strings.NewReplacer("{", "", "}", "").Replace(path)+query, nil))
				if known := !bytes.Contains(answer, []byte("there is no such parameter")); known != documented {
					t.Errorf("GET %s: the parameter %s is documented: %v, known to the handler: %v", path, name, documented, known)
				}
			}
		}
	}
}

// schemaName returns the name of the schema of a type: the name of the type, or "SourcePage" for
// Page[Source].
func schemaName(t reflect.Type) string {
	if of, ok := strings.CutPrefix(t.Name(), "Page["); ok {
		return strings.TrimSuffix(of[strings.LastIndexByte(of, '.')+1:], "]") + "Page"
	}
	return t.Name()
}

// TestOpenAPIHasTheTypes shows that the schemas have the names and fields of the types of package
// api, and of the types of package webhook that it uses.
func TestOpenAPIHasTheTypes(t *testing.T) {
	types := make(map[string]reflect.Type)
	var find func(reflect.Type)
	find = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			find(typ.Elem())
		case reflect.Struct:
			name := schemaName(typ)
			if typ == reflect.TypeFor[time.Time]() || types[name] != nil {
				return
			}
			types[name] = typ
			for _, f := range reflect.VisibleFields(typ) {
				if !f.Anonymous {
					find(f.Type)
				}
			}
		}
	}
	for _, v := range []any{
		api.Error{}, api.Access{}, api.Status{}, api.Nodes{}, api.Page[api.Source]{}, api.Destinations{}, api.Series{}, api.Events{}, api.Live{},
		api.Delivery{}, api.Page[api.Delivery]{}, api.Changed{}, api.NewSecret{},
		api.Count{}, api.Selection{}, api.Progress{}, api.TestRequest{}, api.TestResult{}, api.Deletion{}, api.Erasure{}, api.Erased{}, api.Page[api.Audience]{},
		api.TenantEvent{}, api.Published{}, api.Page[tenants.Tenant]{}, api.TenantSettings{}, api.Page[tenants.Token]{}, api.TokenSettings{}, api.NewToken{}, api.PortalLink{},
		api.Page[api.TenantDestination]{}, api.TenantDestinationSettings{}, api.NewTenantDestination{},
	} {
		find(reflect.TypeOf(v))
	}
	schemas := doc().Components.Schemas
	diff(t, "names of types (types, schemas)", slices.Sorted(maps.Keys(schemas)), slices.Sorted(maps.Keys(types)))
	for name, typ := range types {
		var required []string
		got := schemas[name]
		want := make(map[string]string)
		have := make(map[string]string)
		for _, f := range reflect.VisibleFields(typ) {
			if f.Anonymous {
				continue
			}
			field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if field == "-" {
				continue
			}
			if want[field] = shapeOf(f.Type); strings.HasSuffix(options, ",string") {
				want[field] = "string"
			}
			if !strings.HasPrefix(options, "omit") {
				required = append(required, field)
			}
		}
		for field, s := range got.Properties {
			have[field] = s.shape()
		}
		if typ == reflect.TypeFor[webhook.Retries]() {
			want["standard"] = "boolean" // only in requests
		}
		diff(t, "schema of "+name, have, want)
		diff(t, "required fields of "+name, got.Required, required)
		if got.Description == "" {
			t.Errorf("schema %s has no description", name)
		}
	}
}

// shapeOf describes a Go type in the words that shape uses for a schema.
func shapeOf(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return "string date-time"
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[any]():
		return "any"
	case reflect.TypeFor[time.Duration](), reflect.TypeFor[webhook.Duration]():
		return "string"
	case reflect.TypeFor[webhook.Millis]():
		return "number"
	case reflect.TypeFor[*float64]():
		return "number or null"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Struct:
		return schemaName(t)
	case reflect.Pointer:
		return shapeOf(t.Elem())
	case reflect.Slice:
		return "list of " + shapeOf(t.Elem())
	case reflect.Map:
		return "map of " + shapeOf(t.Elem())
	}
	return t.String()
}

func (s *schema) shape() string {
	switch {
	case s.Ref != "":
		return strings.TrimPrefix(s.Ref, "#/components/schemas/")
	case s.Type == nil:
		return "any"
	}
	switch typ, _ := s.Type.(string); typ {
	case "":
		return "number or null" // the only list of types
	case "array":
		return "list of " + s.Items.shape()
	case "object":
		return "map of " + s.Values.shape()
	case "string":
		return strings.TrimSpace("string " + s.Format)
	default:
		return typ
	}
}

// TestEveryAnswerIsAsDocumented calls every operation. The function do checks each answer against
// openapi.json. All other tests of this package check their answers, too.
func TestEveryAnswerIsAsDocumented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.bury("crm", "refused", 3, noon)
		s.receiver.answers(503)
		s.track("crm", "a1")
		s.run()
		synctest.Wait() // there was an attempt
		if n := len(ask[api.Events](s, 200, "GET", api.EventsPath+"?kind=attempt", nil).Events); n != 1 {
			t.Errorf("the events have %d attempts, want 1", n)
		}
		key := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveriesPath+"?state=dead", nil).Items[0].Key
		ask[api.Destination](s, 200, "PUT", "/api/v1/destinations/new", edited)
		fill := strings.NewReplacer("{destination}", "crm", "{key}", key, "{audience}", "vip", api.StoryPath, api.StoryPath+"?destination=crm&id=a1")
		bodies := map[string]any{
			"POST " + api.RetryPath:        `{"query":{"type":"page"}}`,
			"POST " + api.DiscardPath:      `{"keys":["crm:1"]}`,
			"POST " + api.TestPath:         `{"destination":"shop/eu"}`,
			"POST " + api.DeletionsPath:    `{"users":["u1"]}`,
			"POST " + api.ErasuresPath:     `{"user":"u1"}`,
			"POST " + api.AudiencesPath:    `{"destination":"crm","name":"vip"}`,
			"PUT " + api.DestinationPath:   edited,
			"PATCH " + api.DestinationPath: edited,
			"PUT " + api.MembersPath:       strings.NewReader("u1\nu2\n"),
		}
		for _, r := range routes() {
			path := fill.Replace(r.path)
			if r.path == api.SecretsPath || r.path == api.DestinationPath && r.method != "GET" {
				path = strings.Replace(r.path, "{destination}", "new", 1)
			}
			req := s.request(r.method, path, bodies[r.method+" "+r.path])
			if r.method == "DELETE" && r.path == api.DestinationPath {
				continue // needs a parameter: see TestDestinationIsSetChangedAndDeleted
			}
			if strings.HasPrefix(r.path, api.TenantsPath) {
				continue // see TestTenantsAndTheirDestinations
			}
			if r.path == api.LivePath { // does not end: see TestLiveStreamsEvents
				continue
			}
			if resp, text := s.do(req); resp.StatusCode != 200 {
				t.Errorf("%s %s: %s: %s", r.method, r.path, resp.Status, text)
			}
		}
		resp, text := s.do(s.request("GET", api.OpenAPIPath, nil))
		if resp.StatusCode != 200 || !bytes.Equal(text, openAPI) {
			t.Errorf("GET %s: %s and %d bytes, want openapi.json", api.OpenAPIPath, resp.Status, len(text))
		}
	})
}
