package ir

import (
	"slices"
	"strings"
)

// Marks are what a model says of a value without changing what it computes: the attribute "name",
// by which policies and reports know it (several, separated by commas, where equal computations had
// different ones), and "pin", with which it is computed once and kept, whatever policy and
// budget. A marked value exists: passes neither take it into another op nor compute it again in each reader.

// Marked reports whether the model has marked v.
func (v *Value) Marked() bool { return v.Attrs.Str("name") != "" || v.Attrs.Bool("pin") }

// Marks are v's marks, nil where it has none.
func (v *Value) Marks() Attrs {
	var as Attrs
	if n := v.Attrs.Str("name"); n != "" {
		as = as.Set("name", n)
	}
	if v.Attrs.Bool("pin") {
		as = as.Set("pin", true)
	}
	return as
}

// Mark gives v a name, or another one, if name is not empty, and pins it if pin is true.
func (v *Value) Mark(name string, pin bool) {
	if name != "" {
		names := strings.Split(name, ",")
		if have := v.Attrs.Str("name"); have != "" {
			names = strings.Split(have, ",")
			for _, n := range strings.Split(name, ",") {
				if !slices.Contains(names, n) {
					names = append(names, n)
				}
			}
		}
		v.Attrs = v.Attrs.Set("name", strings.Join(names, ","))
	}
	if pin {
		v.Attrs = v.Attrs.Set("pin", true)
	}
}

// Inherit gives v the marks of a value that it takes the place of, and, if it has none of its own, the
// name that it has in the text.
func (v *Value) Inherit(from *Value) {
	if v == from {
		return
	}
	v.Mark(from.Attrs.Str("name"), from.Attrs.Bool("pin"))
	if v.Op != nil && isNumber(v.Name) && !isNumber(from.Name) {
		v.Name = from.Name
	}
}
