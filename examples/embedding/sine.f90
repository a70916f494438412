! gpunn from Fortran: learns y = sin(x) on -3 .. 3 and says how far off it is at points it has not seen.
!
!     python3 -m generator.fortran -o gpunn.f90
!     cc -O3 -march=native -c examples/embedding/gpunn.c -I. -o library.o
!     gfortran -O2 gpunn.f90 examples/embedding/sine.f90 library.o -lm -lpthread -o sine && ./sine
!
! The first command writes the module gpunn, whose first comment says how gpunn's calls look in Fortran. The program holds doubles;
! gpunn computes in floats. Fortran's x(features, batch) is C's x[batch][features].
!
! Expect: the largest error at 100 unseen points, about 0.01.
! Time:   less than a second on two cores.
! Next:   training.f90, which sets the initial weights and makes new data for each step.
program sine
    use gpunn
    implicit none
    integer, parameter :: points = 256, unseen = 100
    real(c_double)     :: x(1, points), t(1, points), y(1, unseen), at(1, unseen)
    type(c_ptr)        :: dev, model, input, target, hidden, output, loss, adam
    integer            :: i

    x(1, :) = [(-3 + 6 * real(i, c_double) / points, i = 1, points)]
    t = sin(x)
    dev = gpunn_device_open(gpunn_device_args(seed=1))
    if (.not. c_associated(dev)) error stop gpunn_error(c_null_ptr)
    model = gpunn_model_create(dev)
    input = gpunn_input(model, 'x', GPUNN_F64, gpunn_shape([GPUNN_BATCH, 1]))
    target = gpunn_input(model, 't', GPUNN_F64, gpunn_shape([GPUNN_BATCH, 1]))
    hidden = gpunn_tanh(gpunn_linear(input, 'fc1', gpunn_linear_args(out_features=32)))
    output = gpunn_linear(hidden, 'fc2', gpunn_linear_args(out_features=1))
    loss = gpunn_mse_loss(output, target)
    adam = gpunn_adam(model, gpunn_adam_args(lr=0.01))
    call gpunn_check(gpunn_write(input, x), dev)
    call gpunn_check(gpunn_write(target, t), dev)
    do i = 1, 1000
        call gpunn_check(gpunn_train_step(adam, loss), dev)
    end do

    at(1, :) = [(-2.9 + 5.8 * real(i, c_double) / unseen, i = 1, unseen)]
    call gpunn_check(gpunn_write(input, at), dev)
    call gpunn_check(gpunn_forward([output]), dev)
    call gpunn_check(gpunn_read(output, y), dev)
    print '(a, f8.5)', 'largest error', maxval(abs(y - sin(at)))
    call gpunn_optimizer_destroy(adam)
    call gpunn_model_destroy(model)
    call gpunn_device_close(dev)
end program
