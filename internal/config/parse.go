package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Property is one assignment of a properties text, with the line it began on.
type Property struct {
	Key   string
	Value string
	Line  int
}

// ParseProperties reads Java's .properties text (UTF-8): comments by # or !, keys ended by =, : or space,
// lines continued by an odd number of backslashes at their end, and the escapes \t \n \r \f \uXXXX;
// a backslash before any other character is dropped. It never fails: every text is a set of properties.
func ParseProperties(text string) []Property {
	var out []Property
	lines := strings.Split(strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimLeft(lines[i], " \t\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		first := i + 1
		for continued(line) {
			line = line[:len(line)-1]
			if i+1 >= len(lines) {
				break
			}
			i++
			line += strings.TrimLeft(lines[i], " \t\f")
		}
		key, value := splitProperty(line)
		out = append(out, Property{Key: unescape(key), Value: unescape(value), Line: first})
	}
	return out
}

func continued(line string) bool {
	n := 0
	for n < len(line) && line[len(line)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// splitProperty cuts a logical line at the first separator that is not escaped.
func splitProperty(line string) (key, value string) {
	end := 0
	for end < len(line) && !strings.ContainsRune("=: \t\f", rune(line[end])) {
		if line[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(line))
	rest := strings.TrimLeft(line[end:], " \t\f")
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], " \t\f")
	}
	return line[:end], rest
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i >= len(s) {
			break
		}
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			r, used := unicodeEscape(s[i-1:])
			if used == 0 {
				b.WriteByte('u')
				continue
			}
			b.WriteRune(r)
			i += used - 2
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// unicodeEscape reads one \uXXXX, or two that form a surrogate pair; used is the number of bytes read.
func unicodeEscape(s string) (r rune, used int) {
	unit := func(s string) (rune, bool) {
		if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(s[2:6], 16, 16)
		return rune(n), err == nil
	}
	hi, ok := unit(s)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(hi) {
		if lo, ok := unit(s[6:]); ok {
			if pair := utf16.DecodeRune(hi, lo); pair != 0xFFFD {
				return pair, 12
			}
		}
	}
	return hi, 6
}

// FormatProperties writes properties so that ParseProperties and Java read them back, one per line, in order.
func FormatProperties(props []Property) string {
	var b strings.Builder
	for _, p := range props {
		b.WriteString(escapeProperty(p.Key, true))
		b.WriteByte('=')
		b.WriteString(escapeProperty(p.Value, false))
		b.WriteByte('\n')
	}
	return b.String()
}

func escapeProperty(s string, key bool) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\f':
			b.WriteString(`\f`)
		case r == '\\', r == '=' && key, r == ':' && key, r == ' ' && (key || i == 0), (r == '#' || r == '!') && key && i == 0:
			b.WriteByte('\\')
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Sources are the places a broker's settings come from. A later field yields to an earlier one.
type Sources struct {
	// Set holds name=value arguments; of two with the same name the last counts.
	Set []string
	// Env holds NAME=value pairs as os.Environ gives them; only STELE_ names are looked at, with _ for the
	// dots of a setting's name, in upper case.
	Env []string
	// File is the text of a properties file, FileName its name for messages.
	File     string
	FileName string
	// DataDir is the default of log.dirs and of the metadata log.
	DataDir string
}

// Warning is something in the sources that has no effect, or not the effect one may expect.
type Warning struct {
	Source  string // "--set", "environment", or the file's name
	Name    string
	Message string
}

func (w Warning) String() string { return fmt.Sprintf("%s: %s: %s", w.Source, w.Name, w.Message) }

// SourceError says in which source a faulty value stands. It unwraps to the fault itself.
type SourceError struct {
	Source string
	Err    error
}

func (e *SourceError) Error() string { return e.Source + ": " + e.Err.Error() }
func (e *SourceError) Unwrap() error { return e.Err }

// SyntaxError is an argument that is not of the form name=value.
type SyntaxError struct{ Argument string }

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%q is not of the form name=value", e.Argument)
}

type given struct{ value, source string }

// Parse reads all sources, keeps the first value of each name in their order of precedence, and validates
// every known one. Unknown names are kept (plug-ins and newer configurations have some) and warned about.
// The error names the source, the setting, the value and the permitted range.
func Parse(src Sources) (*Broker, []Warning, error) {
	b := &Broker{given: map[string]given{}}
	var warnings []Warning
	if src.DataDir != "" {
		b.given["log.dirs"] = given{src.DataDir, "--data-dir"}
	}
	fileName := src.FileName
	if fileName == "" {
		fileName = "configuration file"
	}
	props := ParseProperties(src.File)
	if slices.ContainsFunc(props, func(p Property) bool { return p.Key == "log.dir" }) {
		delete(b.given, "log.dirs")
	}
	seen := map[string]int{}
	for _, p := range props {
		if before, twice := seen[p.Key]; twice {
			warnings = append(warnings, Warning{fileName, p.Key, fmt.Sprintf("given twice, line %d replaces line %d", p.Line, before)})
		}
		seen[p.Key] = p.Line
		b.given[p.Key] = given{p.Value, fmt.Sprintf("%s line %d", fileName, p.Line)}
	}
	for _, pair := range src.Env {
		name, value, ok := strings.Cut(pair, "=")
		if ok && strings.HasPrefix(name, "STELE_") {
			b.given[envName(name)] = given{value, "environment " + name}
		}
	}
	for _, arg := range src.Set {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, warnings, &SourceError{"--set", &SyntaxError{arg}}
		}
		b.given[strings.TrimSpace(name)] = given{value, "--set"}
	}
	unknown, err := b.validate()
	warnings = append(warnings, unknown...)
	if err != nil {
		return nil, warnings, err
	}
	return b, warnings, nil
}

// envName finds the setting that an environment variable names. Names that hold an underscore or capitals
// themselves are found through the table; others follow from the letters alone.
func envName(env string) string {
	plain := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(env, "STELE_"), "_", "."))
	if _, ok := brokerTable.byName[plain]; ok {
		return plain
	}
	for name := range brokerTable.byName {
		if strings.EqualFold(strings.ReplaceAll(name, "_", "."), plain) {
			return name
		}
	}
	return plain
}
