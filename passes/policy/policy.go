// Package policy lets a person say what is kept, computed again or moved to the host between
// the forward and the backward part of a training step: by layer, by the name of a value, by kind of op, by
// size, by position in a list of layers, or by the name of a policy from elsewhere.
//
// A policy is a pure value: it is read once, and applying it to a planning problem changes the
// problem and nothing else. The file format is described in docs/policies.md, the named policies in docs/exactness.md.
package policy

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"reprise/internal/diag"
)

// Fate is what a rule wants for a value between forward and backward.
type Fate uint8

// The fates.
const (
	Save Fate = iota
	Recompute
	Offload
)

// String is the word of the file format.
func (f Fate) String() string { return [...]string{"save", "recompute", "offload"}[f] }

// Where is the line of a policy, for messages.
type Where struct {
	File string // a file's name, "--rule", or "--policy"
	Line int    // from 1
	Text string // the line without its comment
}

func (w Where) String() string { return fmt.Sprintf("%s:%d", w.File, w.Line) }

// Rule is one "must" or "prefer" line. Empty patterns match everything.
type Rule struct {
	Where
	Must     bool
	Fate     Fate
	Layer    string // pattern of a layer path; matches what lies below as well
	Value    string // pattern of a value's name
	Op       string // pattern of an op's kind
	MinBytes int64
	Every    int // 0: every layer; K: layers at positions OFFSET, OFFSET+K, … of their list
	Offset   int
}

// Use is a "use NAME" line, or the name that --policy gave.
type Use struct {
	Where
	Name string // with its parameters: "save_only_these_names:a,b"
	base base
}

// RegionBudget is a "budget" line: of the values made in the layers, at most Bytes are kept for the
// backward part.
type RegionBudget struct {
	Where
	Layer string
	Bytes int64
}

// Allow is an "allow-recompute" line: in these layers nothing is pinned for being a decision, or for
// leading to one.
type Allow struct {
	Where
	Layer string
}

// Policy is a list of lines. It is immutable.
type Policy struct {
	name    string
	rules   []Rule
	uses    []Use
	budgets []RegionBudget
	allows  []Allow
	lines   []Where
}

// Name is the policy's name or its file.
func (p *Policy) Name() string { return p.name }

// Lines are the policy's lines in order, without comments.
func (p *Policy) Lines() []Where { return append([]Where{}, p.lines...) }

// Allows are the lines that opt out of pinning.
func (p *Policy) Allows() []Allow {
	if p == nil {
		return nil
	}
	return append([]Allow{}, p.allows...)
}

// MayRecompute reports whether a line opts the layer out of pinning. A nil policy opts nothing out.
func (p *Policy) MayRecompute(layer string) bool {
	if p == nil {
		return false
	}
	for _, a := range p.allows {
		if matchLayer(a.Layer, layer) {
			return true
		}
	}
	return false
}

// Load reads a policy that a person named: one of Named with its parameters, or a file. "" is a policy
// without lines, to which With may add.
func Load(arg string) (*Policy, error) {
	if arg == "" {
		return &Policy{}, nil
	}
	word, _, _ := strings.Cut(arg, ":")
	if lookup(word) != nil {
		p := &Policy{name: arg}
		if err := p.use(arg, Where{"--policy", 1, arg}); err != nil {
			return nil, err
		}
		p.lines = append(p.lines, Where{"--policy", 1, arg})
		return p, nil
	}
	text, err := os.ReadFile(arg)
	if err != nil {
		e := diag.Errorf("policy", "no named policy, and no file that can be read: %v", diag.Cause(err))
		e.File = arg
		if near := nearest(word, names(), 3); len(near) > 0 {
			return nil, e.WithHint("did you mean %s? Otherwise give a file of rules", strings.Join(near, " or "))
		}
		return nil, e.WithHint("named policies: %s", strings.Join(names(), ", "))
	}
	return Parse(arg, text)
}

// Parse reads a policy file. file is for messages.
func Parse(file string, text []byte) (*Policy, error) {
	p := &Policy{name: file}
	for i, line := range strings.Split(string(text), "\n") {
		if err := p.line(Where{File: file, Line: i + 1, Text: line}); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// With is p with more lines, in the words of a file. They count as later than the lines of p.
func (p *Policy) With(rules ...string) (*Policy, error) {
	q := *p
	q.rules, q.uses = append([]Rule{}, p.rules...), append([]Use{}, p.uses...)
	q.budgets, q.allows, q.lines = append([]RegionBudget{}, p.budgets...), append([]Allow{}, p.allows...), p.Lines()
	for i, r := range rules {
		if strings.ContainsAny(r, "\n\r") {
			return nil, bad(Where{"--rule", i + 1, r}, "a rule is one line")
		}
		if err := q.line(Where{File: "--rule", Line: i + 1, Text: r}); err != nil {
			return nil, err
		}
	}
	if q.name == "" && len(rules) > 0 {
		q.name = "--rule"
	}
	return &q, nil
}

func bad(w Where, format string, args ...any) *diag.Error {
	e := diag.Errorf("policy", format, args...)
	e.File, e.Line = w.File, w.Line
	return e
}

// uncomment cuts a comment off: # at the start of the line or after a space.
func uncomment(s string) string {
	for i := range s {
		if s[i] == '#' && (i == 0 || s[i-1] == ' ' || s[i-1] == '\t') {
			s = s[:i]
			break
		}
	}
	return strings.TrimSpace(s)
}

func (p *Policy) line(w Where) error {
	w.Text = strings.Join(strings.Fields(uncomment(w.Text)), " ")
	if w.Text == "" {
		return nil
	}
	p.lines = append(p.lines, w)
	words := strings.Fields(w.Text)
	switch words[0] {
	case "must", "prefer":
		return p.rule(w, words)
	case "use":
		if len(words) != 2 {
			return bad(w, "use takes one name").WithHint("use dots_saveable; named policies: %s", strings.Join(names(), ", "))
		}
		return p.use(words[1], w)
	case "budget":
		return p.budget(w, words[1:])
	case "allow-recompute":
		var a Allow
		for _, word := range words[1:] {
			key, val, ok := strings.Cut(word, "=")
			if key != "layer" || !ok || val == "" || a.Layer != "" {
				return bad(w, "allow-recompute: %q is not layer=PATTERN", word).WithHint("allow-recompute layer=layers.3.moe")
			}
			a.Layer = val
		}
		if a.Layer == "" {
			return bad(w, "allow-recompute needs the layers by name").WithHint("allow-recompute layer=layers.3.moe; layer=** is every layer")
		}
		a.Where = w
		p.allows = append(p.allows, a)
		return nil
	}
	verbs := []string{"must", "prefer", "use", "budget", "allow-recompute"}
	e := bad(w, "a line starts with must, prefer, use, budget or allow-recompute, not %q", words[0])
	if near := nearest(words[0], verbs, 1); len(near) > 0 {
		return e.WithHint("did you mean %s?", near[0])
	}
	if lookup(strings.SplitN(words[0], ":", 2)[0]) != nil {
		return e.WithHint("write: use %s", words[0])
	}
	return e
}

func (p *Policy) rule(w Where, words []string) error {
	r := Rule{Where: w, Must: words[0] == "must"}
	if len(words) < 2 {
		return bad(w, "%s what? save, recompute or offload must follow", words[0]).WithHint("%s save op=attention", words[0])
	}
	switch words[1] {
	case "save":
		r.Fate = Save
	case "recompute":
		r.Fate = Recompute
	case "offload":
		r.Fate = Offload
	default:
		e := bad(w, "%s is followed by save, recompute or offload, not %q", words[0], words[1])
		if near := nearest(words[1], []string{"save", "recompute", "offload"}, 1); len(near) > 0 {
			return e.WithHint("did you mean %s?", near[0])
		}
		return e
	}
	seen := map[string]bool{}
	for _, word := range words[2:] {
		key, val, ok := strings.Cut(word, "=")
		if !ok || val == "" {
			return bad(w, "%q is not KEY=VALUE", word).WithHint("keys: layer, value, op, min_bytes, every")
		}
		if seen[key] {
			return bad(w, "%s is given twice", key).WithHint("write two rules")
		}
		seen[key] = true
		switch key {
		case "layer":
			r.Layer = val
		case "value":
			r.Value = strings.TrimPrefix(val, "%")
		case "op":
			r.Op = val
		case "min_bytes":
			n, err := ParseBytes(val)
			if err != nil {
				return bad(w, "min_bytes=%s: %v", val, err).WithHint("write 4096, 64KiB or 1.5MB")
			}
			r.MinBytes = n
		case "every":
			k, off, _ := strings.Cut(val, "+")
			var err error
			if r.Every, err = strconv.Atoi(k); err != nil || r.Every < 1 {
				return bad(w, "every=%s: want K or K+OFFSET with K at least 1", val)
			}
			if off != "" {
				if r.Offset, err = strconv.Atoi(off); err != nil || r.Offset < 0 || r.Offset >= r.Every {
					return bad(w, "every=%s: the offset is 0 … K-1", val)
				}
			}
		default:
			e := bad(w, "no key %q", key)
			if near := nearest(key, []string{"layer", "value", "op", "min_bytes", "every"}, 1); len(near) > 0 {
				return e.WithHint("did you mean %s=? Keys: layer, value, op, min_bytes, every", near[0])
			}
			return e.WithHint("keys: layer, value, op, min_bytes, every")
		}
	}
	p.rules = append(p.rules, r)
	return nil
}

func (p *Policy) budget(w Where, words []string) error {
	b := RegionBudget{Where: w, Bytes: -1}
	for _, word := range words {
		if key, val, ok := strings.Cut(word, "="); ok {
			if key != "layer" || val == "" || b.Layer != "" {
				return bad(w, "budget: %q is not layer=PATTERN", word).WithHint("budget layer=layers.*.mlp 64MiB")
			}
			b.Layer = val
			continue
		}
		if b.Bytes >= 0 {
			return bad(w, "budget: a second number of bytes, %q", word).WithHint("budget layer=layers.*.mlp 64MiB")
		}
		n, err := ParseBytes(word)
		if err != nil {
			return bad(w, "budget: %v", err).WithHint("budget layer=layers.*.mlp 64MiB")
		}
		b.Bytes = n
	}
	if b.Layer == "" || b.Bytes < 0 {
		return bad(w, "budget needs layer=PATTERN and a number of bytes").WithHint("budget layer=layers.*.mlp 64MiB")
	}
	p.budgets = append(p.budgets, b)
	return nil
}

func (p *Policy) use(name string, w Where) error {
	b, err := resolve(name)
	if err != nil {
		e := bad(w, "%v", err)
		word, _, _ := strings.Cut(name, ":")
		if n := lookup(word); n != nil {
			return e.WithHint("%s: %s", n.Usage(), n.Meaning)
		}
		if near := nearest(word, names(), 3); len(near) > 0 {
			return e.WithHint("did you mean %s?", strings.Join(near, " or "))
		}
		return e.WithHint("named policies: %s", strings.Join(names(), ", "))
	}
	p.uses = append(p.uses, Use{w, name, b})
	return nil
}

// ParseBytes reads 4096, 64KiB, 1.5MB: a whole number of bytes, or any number of a unit.
func ParseBytes(s string) (int64, error) {
	number, size := strings.TrimSuffix(s, "B"), 1.0
	for _, u := range []struct {
		name string
		size float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}} {
		if t, ok := strings.CutSuffix(s, u.name); ok {
			number, size = t, u.size
			break
		}
	}
	number = strings.TrimSpace(number)
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && size == 1 && 0 <= n && n <= 1<<60 {
		return n, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil || !(f >= 0) || f*size > 1<<60:
		return 0, fmt.Errorf("%q is no number of bytes", s)
	case size == 1 && f != math.Trunc(f):
		return 0, fmt.Errorf("%q is no whole number of bytes", s)
	}
	return int64(f * size), nil
}
