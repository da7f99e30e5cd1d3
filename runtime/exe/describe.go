package exe

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
)

// Format is the signature's "format".
const Format = "reprise.model/1"

// Description is the signature of a compiled model: what --describe prints and
// what its section of the binary holds.
type Description struct {
	Format            string             `json:"format"`
	Name              string             `json:"name"`
	Kind              string             `json:"kind"` // "train" or "infer"
	Target            string             `json:"target"`
	Requires          []string           `json:"requires"` // CPU features
	InputSHA256       string             `json:"input_sha256"`
	PromisedPeakBytes int64              `json:"promised_peak_bytes"`
	ArenaBytes        int64              `json:"arena_bytes"`
	ResidentBytes     int64              `json:"resident_bytes"`
	ConstantBytes     int64              `json:"constant_bytes"`
	Loss              string             `json:"loss,omitempty"`
	Launches          int                `json:"launches"` // in a step's program
	Kernels           int                `json:"kernels"`  // distinct ones of both programs
	Values            []ValueDescription `json:"values"`
	Ops               []OpRun            `json:"ops,omitempty"` // by op, sub, clone
	Info              json.RawMessage    `json:"info,omitempty"`
	Plan              json.RawMessage    `json:"plan,omitempty"`
}

// ValueDescription is a value in the signature.
type ValueDescription struct {
	Name   string  `json:"name"`
	Layer  string  `json:"layer,omitempty"`
	Role   string  `json:"role"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	Offset int64   `json:"offset"`
	Bytes  int64   `json:"bytes"`
	Feed   string  `json:"feed,omitempty"`
}

// Describe makes the model's signature.
func (m *Model) Describe() Description {
	d := Description{
		Format: Format, Name: m.Name, Kind: "infer", Target: m.Target, Requires: append([]string{}, m.Features...),
		InputSHA256: m.InputSHA256, PromisedPeakBytes: m.ArenaBytes, ArenaBytes: m.ArenaBytes, ResidentBytes: m.ResidentBytes,
		Ops: SortOps(m.Ops), ConstantBytes: int64(len(m.Consts)), Loss: m.Loss, Values: []ValueDescription{}, Info: m.Info, Plan: m.Plan,
	}
	if m.Train {
		d.Kind = "train"
	}
	seen := map[string]bool{}
	for i, prog := range [][]Inst{m.Init, m.Step} {
		for _, in := range prog {
			if in.Kind != Launch {
				continue
			}
			if i == 1 {
				d.Launches++
			}
			seen[in.Symbol] = true
		}
	}
	d.Kernels = len(seen)
	for _, v := range m.Values {
		d.Values = append(d.Values, ValueDescription{v.Name, v.Layer, v.Role.String(), v.DType.String(), append([]int64{}, v.Shape...), v.Offset, v.Bytes, v.Feed})
	}
	return d
}

// section is where the binary keeps its signature.
const section = ".reprise.describe"

// ReadDescription reads the signature out of an executable or shared library
// without running it. The error says so where the file is no compiled model.
func ReadDescription(path string) (Description, error) {
	var d Description
	file, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer file.Close()
	f, err := elf.NewFile(file)
	if err != nil {
		return d, fmt.Errorf("%s is not a compiled model: %w", path, err)
	}
	s := f.Section(section)
	if s == nil {
		return d, fmt.Errorf("%s is not a compiled model: it has no section %s", path, section)
	}
	text, err := s.Data()
	if err != nil {
		return d, fmt.Errorf("%s: damaged: %w", path, err)
	}
	if err := json.Unmarshal(bytes.TrimRight(text, "\x00"), &d); err != nil {
		return d, fmt.Errorf("%s: damaged signature: %w", path, err)
	}
	if d.Format != Format {
		return d, fmt.Errorf("%s: signature has format %q: this program reads %q", path, d.Format, Format)
	}
	return d, nil
}
