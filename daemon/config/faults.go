// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/gpuslice/gpuslice/api"
)

// InvalidError is returned for a file that is not accepted.
type InvalidError struct {
	File   string
	Faults []Fault // at least one, by line
}

// Fault is a key, a value or a line that is not accepted.
type Fault struct {
	Line int // 0 if unknown
	Text string
}

// Lines returns each fault as "FILE:LINE: TEXT".
func (e *InvalidError) Lines() (lines []string) {
	for _, f := range e.Faults {
		place := e.File
		if f.Line > 0 {
			place += ":" + strconv.Itoa(f.Line)
		}
		lines = append(lines, place+": "+f.Text)
	}
	return lines
}

// Error returns the first fault, and the number of the others.
func (e *InvalidError) Error() string {
	first := e.Lines()[0]
	if more := len(e.Faults) - 1; more > 0 {
		return fmt.Sprintf("%s (%d more: `gpuslice config check --config %s` lists them)", first, more, e.File)
	}
	return first
}

// faults collects the faults of a file.
type faults struct {
	all   []Fault
	lines map[string]int  // of keys and sections
	bad   map[string]bool // keys with a fault
}

// add adds a fault of a key, unless the key has one already.
func (f *faults) add(key, format string, args ...any) {
	if !f.bad[key] {
		f.bad[key] = true
		f.all = append(f.all, Fault{f.line(key), fmt.Sprintf(format, args...)})
	}
}

// unless adds a fault of a key's value if ok is false.
func (f *faults) unless(ok bool, key string, value any, accepted string, args ...any) {
	if !ok {
		f.add(key, "%s%s: %s", key, display(value), fmt.Sprintf(accepted, args...))
	}
}

// display returns " = VALUE" as the file has it, or "" for a table.
func display(value any) string {
	kind := reflect.ValueOf(value).Kind()
	if _, ok := value.(fmt.Stringer); ok || kind == reflect.String {
		return fmt.Sprintf(" = %.120q", value)
	}
	if kind == reflect.Map || kind == reflect.Slice {
		return ""
	}
	return fmt.Sprintf(" = %v", value)
}

// line returns the line of a key, else that of its section, else 0.
func (f *faults) line(key string) int {
	for key != "" && f.lines[key] == 0 {
		key = key[:max(0, strings.LastIndexAny(key, ".:,"))]
	}
	return f.lines[key]
}

// below returns the name of a key in a section. Sections in double brackets are counted: "sessions.limits, number 1: user".
func below(section, key string) string {
	switch key = (toml.Key{key}).String(); {
	case section == "":
		return key
	case strings.Contains(section, numbered):
		return section + ": " + key
	}
	return section + "." + key
}

const numbered = ", number "

// linesOf returns the lines that set keys and begin sections. It does not look into inline tables.
func linesOf(text string) map[string]int {
	lines, times := make(map[string]int), make(map[string]int)
	section, number := "", 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		key := ""
		if name, ok := strings.CutPrefix(line, "["); ok {
			list := strings.HasPrefix(name, "[")
			name, _, _ = strings.Cut(strings.TrimPrefix(name, "["), "]")
			section = strings.TrimSpace(name)
			if times[section]++; list {
				section += numbered + strconv.Itoa(times[section])
			}
			key = section
		} else if name, _, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			name = strings.Trim(strings.TrimSpace(name), `"'`)
			if key = below(section, name); section == "" {
				key = name // "enforcer.socket = …" outside of a section
			}
		}
		if lines[key] == 0 {
			lines[key] = number
		}
	}
	delete(lines, "")
	return lines
}

// parse reads text into c, and returns what is not accepted.
func parse(text string, c *Config) []Fault {
	var sections map[string]toml.Primitive
	known, err := toml.Decode(text, &sections)
	var syntax toml.ParseError
	if errors.As(err, &syntax) {
		return []Fault{{syntax.Position.Line, "this is not TOML: " + cmp.Or(syntax.Message, strings.TrimPrefix(syntax.Error(), "toml: ")) + ": correct the line; text is in quotes"}}
	} else if err != nil {
		return []Fault{{0, err.Error()}}
	}
	f := &faults{lines: linesOf(text), bad: make(map[string]bool)}
	f.table(&known, "", sections, reflect.ValueOf(c).Elem())
	c.check(f)
	slices.SortStableFunc(f.all, func(a, b Fault) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Text, b.Text)) })
	return f.all
}

// table reads the keys of a section into a struct.
func (f *faults) table(known *toml.MetaData, section string, values map[string]toml.Primitive, into reflect.Value) {
	for key, value := range values {
		keys := keysOf(into.Type())
		at := slices.IndexFunc(keys, func(k string) bool { return strings.EqualFold(k, key) })
		if at < 0 {
			f.addUnknown(section, key, keys)
			continue
		}
		f.value(known, below(section, key), value, into.Field(at))
	}
}

func (f *faults) value(known *toml.MetaData, key string, value toml.Primitive, into reflect.Value) {
	read := func(to any) bool {
		err := known.PrimitiveDecode(value, to)
		isTable := true // package toml takes anything for an empty table
		if v := reflect.ValueOf(to).Elem(); v.Kind() == reflect.Map {
			isTable = !v.IsNil()
		}
		if err != nil || !isTable {
			f.addInvalid(known, key, value, into, err)
		}
		return err == nil && isTable
	}
	_, text := into.Addr().Interface().(encoding.TextUnmarshaler)
	switch kind := into.Kind(); {
	case kind == reflect.Struct && !text:
		var keys map[string]toml.Primitive
		if read(&keys) {
			f.table(known, key, keys, into)
		}
	case kind == reflect.Map:
		var names map[string]map[string]toml.Primitive
		if read(&names) {
			for name, keys := range names {
				if keys == nil {
					f.add(below(key, name), "%s: a section is accepted", below(key, name))
				}
				one := reflect.New(into.Type().Elem()).Elem()
				f.table(known, below(key, name), keys, one)
				into.SetMapIndex(reflect.ValueOf(name), one)
			}
		}
	case kind == reflect.Slice && into.Type().Elem().Kind() == reflect.Struct:
		var several []map[string]toml.Primitive
		if read(&several) {
			into.Set(reflect.MakeSlice(into.Type(), len(several), len(several)))
			for i, keys := range several {
				f.table(known, key+numbered+strconv.Itoa(i+1), keys, into.Index(i))
			}
		}
	default:
		if _, ok := into.Interface().(time.Duration); ok && !read(new(string)) { // package toml takes a number for nanoseconds
			return
		}
		read(into.Addr().Interface())
	}
}

// keysOf returns the keys of a section, in the order of the struct's fields.
func keysOf(section reflect.Type) (keys []string) {
	for i := range section.NumField() {
		keys = append(keys, section.Field(i).Tag.Get("toml"))
	}
	return keys
}

var inWords = map[reflect.Kind]string{
	reflect.String: "text in quotes", reflect.Slice: "a list in brackets", reflect.Bool: "true or false, without quotes,",
	reflect.Float64: "a number without quotes, such as 1.5,", reflect.Int: "a whole number without quotes",
	reflect.Struct: "a section", reflect.Map: "a section for each name",
}

// addInvalid adds a fault of a value with the wrong type, or with text that its type does not accept.
func (f *faults) addInvalid(known *toml.MetaData, key string, value toml.Primitive, into reflect.Value, err error) {
	var refused toml.ParseError
	if _, text := into.Addr().Interface().(encoding.TextUnmarshaler); text && errors.As(err, &refused) {
		f.add(key, "%s: %s", key, refused.Message)
		return
	} else if text {
		f.add(key, "%s: text in quotes is accepted", key)
		return
	}
	var given any
	if known.PrimitiveDecode(value, &given) != nil {
		given = []any{}
	}
	accepted := inWords[into.Kind()]
	if into.Type() == reflect.TypeFor[time.Duration]() {
		accepted = `a duration such as "500ms", "30s" or "12h"`
	}
	f.unless(false, key, given, "%s is accepted", accepted)
}

// addUnknown adds a fault of a key that there is not, with the one that was probably meant.
func (f *faults) addUnknown(section, key string, keys []string) {
	name := below(section, key)
	help := ": gpuslice.toml(5) has them all"
	if near := api.Nearest(key, keys); near != "" {
		near = below(section, near)
		help = ": did you mean " + near + "?"
		defer func() { f.bad[near] = true }() // it may be missing now
	} else if in := sectionsWith(key); section == "" && len(in) > 0 {
		help = " outside of a section: write the name of its section in a line above it (" + strings.Join(in, ", ") + ")"
	}
	f.add(name, "there is no key %s%s", name, help)
}

// sectionsWith returns the sections that have a key.
func sectionsWith(key string) (has []string) {
	for _, table := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		section, fields := table.Tag.Get("toml"), table.Type
		if fields.Kind() == reflect.Map {
			section, fields = section+".NAME", fields.Elem()
		}
		if slices.Contains(keysOf(fields), key) {
			has = append(has, "["+section+"]")
		}
	}
	return has
}
