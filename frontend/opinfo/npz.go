package opinfo

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// readNPZ reads all arrays of a .npz archive, named without ".npy".
func readNPZ(path string) (map[string]*tensor.Tensor, error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer z.Close()
	out := map[string]*tensor.Tensor{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
		data, err := io.ReadAll(r)
		r.Close()
		if err == nil {
			out[strings.TrimSuffix(f.Name, ".npy")], err = parseNPY(data)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
	}
	return out, nil
}

var (
	descrRE   = regexp.MustCompile(`'descr':\s*'([^']*)'`)
	fortranRE = regexp.MustCompile(`'fortran_order':\s*(True|False)`)
	shapeRE   = regexp.MustCompile(`'shape':\s*\(([^)]*)\)`)
)

// parseNPY reads an array in NumPy's format, version 1 or 2, little endian.
func parseNPY(data []byte) (*tensor.Tensor, error) {
	if len(data) < 12 || !bytes.HasPrefix(data, []byte("\x93NUMPY")) {
		return nil, fmt.Errorf("not a .npy file")
	}
	start, n := 10, int(binary.LittleEndian.Uint16(data[8:]))
	if data[6] >= 2 {
		start, n = 12, int(binary.LittleEndian.Uint32(data[8:]))
	}
	if len(data) < start+n {
		return nil, fmt.Errorf("header is cut short")
	}
	header := string(data[start : start+n])
	descr, fortran, dims := descrRE.FindStringSubmatch(header), fortranRE.FindStringSubmatch(header), shapeRE.FindStringSubmatch(header)
	if descr == nil || fortran == nil || dims == nil {
		return nil, fmt.Errorf("header %q is malformed", header)
	}
	types := map[string]dtype.Type{"<f8": dtype.F64, "<f4": dtype.F32, "<f2": dtype.F16, "<i8": dtype.I64, "<i4": dtype.I32, "<i2": dtype.I16,
		"|i1": dtype.I8, "|u1": dtype.U8, "<u2": dtype.U16, "<u4": dtype.U32, "<u8": dtype.U64, "|b1": dtype.Bool}
	d, ok := types[descr[1]]
	if !ok {
		return nil, fmt.Errorf("element type %q is not supported", descr[1])
	}
	var shape []int64
	for _, s := range strings.Split(dims[1], ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("shape (%s) is malformed", dims[1])
		}
		shape = append(shape, v)
	}
	t := tensor.New(d, shape...)
	body := data[start+n:]
	if len(body) < len(t.Data) {
		return nil, fmt.Errorf("%d bytes of data for %v[%v]", len(body), d, shape)
	}
	if fortran[1] == "True" && len(shape) > 1 {
		w := d.Size()
		idx := make([]int64, len(shape))
		for i := range t.Len() {
			src, stride := int64(0), int64(1)
			for k := range shape {
				src += idx[k] * stride
				stride *= shape[k]
			}
			copy(t.Data[i*w:(i+1)*w], body[src*w:])
			for k := len(shape) - 1; k >= 0; k-- {
				if idx[k]++; idx[k] < shape[k] {
					break
				}
				idx[k] = 0
			}
		}
		return t, nil
	}
	copy(t.Data, body)
	return t, nil
}

var infinityRE = regexp.MustCompile(`([:\[,]\s*)(-?)Infinity`)

// fixInfinities makes JSON of Python's dialect: infinite numbers become strings.
func fixInfinities(data []byte) []byte {
	return infinityRE.ReplaceAll(data, []byte(`$1"${2}inf"`))
}
