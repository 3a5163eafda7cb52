// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type schema struct {
	Ref        string            `yaml:"$ref"`
	Type       string            `yaml:"type"`
	Format     string            `yaml:"format"`
	Enum       []string          `yaml:"enum"`
	OneOf      []schema          `yaml:"oneOf"`
	Items      *schema           `yaml:"items"`
	Required   []string          `yaml:"required"`
	Properties map[string]schema `yaml:"properties"`
	Values     yaml.Node         `yaml:"additionalProperties"` // a schema, or false
}

type content map[string]struct {
	Schema schema `yaml:"schema"`
}

type response struct {
	Ref     string     `yaml:"$ref"`
	Codes   []api.Code `yaml:"x-codes"`
	Content content    `yaml:"content"`
}

type operation struct {
	Parameters []struct {
		Name string `yaml:"name"`
		In   string `yaml:"in"`
	} `yaml:"parameters"`
	RequestBody struct {
		Content content `yaml:"content"`
	} `yaml:"requestBody"`
	Responses map[string]response `yaml:"responses"`
}

type document struct {
	Paths      map[string]map[string]yaml.Node `yaml:"paths"`
	Components struct {
		Responses map[string]response `yaml:"responses"`
		Schemas   map[string]schema   `yaml:"schemas"`
	} `yaml:"components"`
}

func loadDocument(t *testing.T) document {
	t.Helper()
	text := must.Get(os.ReadFile("../openapi.yaml"))(t)
	var d document
	must.Do(t, yaml.Unmarshal(text, &d))
	return d
}

func (d document) operations(t *testing.T) map[string]operation {
	t.Helper()
	operations := make(map[string]operation)
	for path, verbs := range d.Paths {
		for verb, node := range verbs {
			if verb == "parameters" {
				continue
			}
			var o operation
			must.Do(t, node.Decode(&o))
			operations[strings.ToUpper(verb)+" "+path] = o
		}
	}
	return operations
}

func (d document) response(t *testing.T, r response) response {
	t.Helper()
	if r.Ref == "" {
		return r
	}
	named, ok := d.Components.Responses[strings.TrimPrefix(r.Ref, "#/components/responses/")]
	expect.True(t, ok, "there is no", r.Ref)
	return named
}

// answers has the Go types of requests and answers by operation.
var answers = map[string]struct{ request, reply reflect.Type }{
	"GET /v1/info":           {nil, reflect.TypeFor[api.Info]()},
	"GET /v1/slices":         {nil, reflect.TypeFor[[]api.Slice]()},
	"POST /v1/slices":        {reflect.TypeFor[api.RegisterRequest](), reflect.TypeFor[api.RegisterReply]()},
	"GET /v1/slices/{id}":    {nil, reflect.TypeFor[api.Slice]()},
	"PATCH /v1/slices/{id}":  {reflect.TypeFor[api.ChangeRequest](), reflect.TypeFor[api.Slice]()},
	"DELETE /v1/slices/{id}": {nil, reflect.TypeFor[api.Slice]()},

	"POST /v1/slices/{id}/join":    {reflect.TypeFor[api.JoinRequest](), reflect.TypeFor[api.RegisterReply]()},
	"POST /v1/slices/{id}/renew":   {reflect.TypeFor[api.RenewRequest](), reflect.TypeFor[api.Slice]()},
	"POST /v1/slices/{id}/suspend": {nil, reflect.TypeFor[api.Slice]()},
	"POST /v1/slices/{id}/resume":  {nil, reflect.TypeFor[api.Slice]()},

	"GET /v1/pools":           {nil, reflect.TypeFor[[]api.Pool]()},
	"GET /v1/pools/{name}":    {nil, reflect.TypeFor[api.Pool]()},
	"PUT /v1/pools/{name}":    {reflect.TypeFor[api.PoolRequest](), reflect.TypeFor[api.Pool]()},
	"PATCH /v1/pools/{name}":  {reflect.TypeFor[api.PoolRequest](), reflect.TypeFor[api.Pool]()},
	"DELETE /v1/pools/{name}": {nil, reflect.TypeFor[api.Pool]()},
	"GET /v1/devices":         {nil, reflect.TypeFor[[]api.Device]()},
	"GET /v1/history":         {nil, reflect.TypeFor[[]api.Run]()},
	"GET /v1/limits":          {nil, reflect.TypeFor[api.UserLimits]()},
	"GET /v1/events":          {nil, reflect.TypeFor[api.Event]()},
	"GET /v1/health":          {nil, reflect.TypeFor[api.Health]()},
}

func TestEveryRouteIsDescribedAndEveryDescriptionHasARoute(t *testing.T) {
	d := loadDocument(t)
	operations := d.operations(t)
	for _, r := range routes {
		name := r.method + " " + r.path
		o, ok := operations[name]
		if !ok {
			t.Errorf("%s is not described", name)
			continue
		}
		delete(operations, name)
		var query []string
		for _, p := range o.Parameters {
			if p.In == "query" {
				query = append(query, p.Name)
			}
		}
		expect.EqualSlices(t, query, r.query, name, "the query that is described")
		types := answers[name]
		d.checkStatuses(t, name, o, r.status)
		kind := "application/json"
		if r.path == "/v1/events" {
			kind = eventsType
		}
		d.checkType(t, name, o.Responses[strconv.Itoa(r.status)].Content[kind].Schema, types.reply)
		if types.request != nil {
			d.checkType(t, name, o.RequestBody.Content["application/json"].Schema, types.request)
		} else if len(o.RequestBody.Content) > 0 {
			t.Errorf("%s is described with a body", name)
		}
	}
	for name := range operations {
		t.Errorf("%s is described, but does not exist", name)
	}
}

// checkStatuses compares the statuses of an operation with the codes that they stand for.
func (d document) checkStatuses(t *testing.T, name string, o operation, success int) {
	t.Helper()
	for status, r := range o.Responses {
		r = d.response(t, r)
		if status == strconv.Itoa(success) {
			expect.Equal(t, len(r.Codes), 0, name, "codes of success")
			continue
		}
		if len(r.Codes) == 0 || r.Content["application/json"].Schema.Ref != "#/components/schemas/Error" {
			t.Errorf("%s: status %s is not described as an Error with codes", name, status)
		}
		for _, c := range r.Codes {
			expect.Equal(t, strconv.Itoa(c.Status()), status, name, c, "status")
		}
	}
	// Any request can be malformed, fail, or exceed a limit.
	needed := []string{strconv.Itoa(success), "400", "500", "503"}
	if len(o.RequestBody.Content) > 0 {
		needed = append(needed, "413")
	}
	for _, status := range needed {
		if _, ok := o.Responses[status]; !ok {
			t.Errorf("%s: status %s is not described", name, status)
		}
	}
}

func TestEveryErrorCodeIsDescribed(t *testing.T) {
	d := loadDocument(t)
	described := make(map[api.Code]bool)
	for _, r := range d.Components.Responses {
		for _, c := range r.Codes {
			described[c] = true
		}
	}
	var enum []api.Code
	for _, c := range d.Components.Schemas["Error"].Properties["code"].Enum {
		enum = append(enum, api.Code(c))
	}
	expect.EqualSlices(t, enum, api.Codes(), "the enum")
	if got := slices.Sorted(maps.Keys(described)); !slices.Equal(got, slices.Sorted(slices.Values(api.Codes()))) {
		t.Errorf("the responses have codes %q, there are %q", got, api.Codes())
	}
}

func TestEveryTypeIsDescribed(t *testing.T) {
	d := loadDocument(t)
	reached := make(map[string]bool)
	var walk func(reflect.Type)
	walk = func(g reflect.Type) {
		switch g.Kind() {
		case reflect.Slice, reflect.Pointer:
			walk(g.Elem())
		case reflect.Struct:
			if g == reflect.TypeFor[time.Time]() || reached[g.Name()] {
				return
			}
			reached[g.Name()] = true
			d.checkStruct(t, g)
			for _, f := range reflect.VisibleFields(g) {
				if f.Anonymous { // its fields follow
					continue
				}
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[api.Error]())
	for _, a := range answers {
		walk(a.reply)
		if a.request != nil {
			walk(a.request)
		}
	}
	for name := range d.Components.Schemas {
		expect.True(t, reached[name], "schema", name, "is described, but not used")
	}
}

// checkStruct compares a schema's properties with a struct's fields, in both directions.
func (d document) checkStruct(t *testing.T, g reflect.Type) {
	t.Helper()
	s, ok := d.Components.Schemas[g.Name()]
	if !ok {
		t.Errorf("type %s is not described", g.Name())
		return
	}
	properties := maps.Clone(s.Properties)
	var required []string
	for _, f := range reflect.VisibleFields(g) {
		if f.Anonymous {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		property, ok := properties[name]
		if !ok {
			t.Errorf("%s.%s is not described", g.Name(), name)
			continue
		}
		delete(properties, name)
		if options == "" {
			required = append(required, name)
		}
		d.checkType(t, g.Name()+"."+name, property, f.Type)
	}
	for name := range properties {
		t.Errorf("%s.%s is described, but does not exist", g.Name(), name)
	}
	expect.EqualSlices(t, s.Required, required, g.Name(), "required")
}

var enums = map[reflect.Type][]string{
	reflect.TypeFor[api.Mode]():      {string(api.Enforce), string(api.Record)},
	reflect.TypeFor[api.EventKind](): eventKinds(),
	reflect.TypeFor[api.Action]():    {string(api.Log), string(api.Refuse), string(api.Kill)},
	reflect.TypeFor[api.State](): {string(api.Active), string(api.Released), string(api.Damaged), string(api.Frozen), string(api.Expired),
		string(api.Suspending), string(api.Suspended), string(api.Resuming), string(api.Evicting), string(api.Evicted), string(api.Returning)},
}

func eventKinds() []string {
	var words []string
	for _, kind := range api.EventKinds() {
		words = append(words, string(kind))
	}
	return words
}

func (d document) checkType(t *testing.T, what string, s schema, g reflect.Type) {
	t.Helper()
	wrong := func() { t.Errorf("%s is a %s, described as %+v", what, g, s) }
	if g.Kind() == reflect.Pointer {
		g = g.Elem()
	}
	switch {
	case g == reflect.TypeFor[time.Time]():
		if s.Type != "string" || s.Format != "date-time" {
			wrong()
		}
	case g.Kind() == reflect.Struct:
		if s.Ref != "#/components/schemas/"+g.Name() {
			wrong()
		}
	case g == reflect.TypeFor[api.PoolNames]():
		if len(s.OneOf) != 2 || s.OneOf[0].Type != "string" || s.OneOf[1].Type != "array" {
			wrong()
			return
		}
		d.checkType(t, what, s.OneOf[1], reflect.TypeFor[[]string]())
	case g.Kind() == reflect.Map:
		var values schema
		if err := s.Values.Decode(&values); s.Type != "object" || err != nil {
			wrong()
			return
		}
		d.checkType(t, what+"{}", values, g.Elem())
	case g.Kind() == reflect.Slice:
		if s.Type != "array" || s.Items == nil {
			wrong()
			return
		}
		d.checkType(t, what+"[]", *s.Items, g.Elem())
	case g.Kind() == reflect.String:
		if words, ok := enums[g]; s.Type != "string" || (ok && !slices.Equal(words, s.Enum)) {
			wrong()
		}
	case g.Kind() == reflect.Bool:
		if s.Type != "boolean" {
			wrong()
		}
	default:
		format := g.Kind().String()
		if format == "int" {
			format = "int64"
		}
		if s.Type != "integer" || s.Format != format {
			wrong()
		}
	}
}
