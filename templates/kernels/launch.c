{
    const int slices = ${slices};
    ${name}_run(${function}_loop, call, ${stat}, ${count}, ${grain}, slices, ${sums}, ${width});
    ${finals}
}
